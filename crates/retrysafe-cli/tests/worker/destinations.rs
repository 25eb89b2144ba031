//! Can an effect make the worker connect where nobody outside may?

use super::bench::{Bench, KEYED, SOON, UNKEYED};
use super::kit::{Step, reply, until};

/// A kind whose effects may name any destination.
fn anywhere(settings: &str) -> String {
    format!("[effects.hook]\ndestinations = [\"http:\", \"https:\"]\n{SOON}{settings}")
}

#[test]
fn no_spelling_of_a_private_address_is_connected_to() {
    let mut bench = Bench::asleep();
    bench.configure(&anywhere(&format!("{UNKEYED}failures_max = 1\n")));
    bench.run();
    let port = bench.provider.address.port();
    let spellings = [
        "127.0.0.1",
        "127.1",
        "2130706433",
        "0x7f000001",
        "0x7f.1",
        "017700000001",
        "0177.0.0.1",
        "127.0.0.1.",
        "0.0.0.0",
        "0",
        "localhost",
        "LOCALHOST",
        "[::1]",
        "[::]",
        "[::ffff:127.0.0.1]",
        "[::ffff:7f00:1]",
        "[::7f00:1]",
        "[64:ff9b::7f00:1]",
        "[64:ff9b:1::7f00:1]",
        "[2002:7f00:1::]",
        "[2001::1]",
        "[fe80::1]",
        "[fc00::1]",
        "[fd00:ec2::254]",
        "[ff02::1]",
        "10.0.0.1",
        "100.64.0.1",
        "100.100.100.200",
        "169.254.169.254",
        "172.16.0.1",
        "192.168.0.1",
        "224.0.0.1",
        "255.255.255.255",
    ];
    let staged = spellings.map(|host| {
        let url = format!("http://{host}:{port}/hook");
        (host, bench.stage_as("hook", Some(&url), "{}"))
    });
    let mut refused = 0;
    for (host, id) in staged {
        // A name that is looked up in vain is tried again; nothing was sent then either.
        until("it is refused", || !bench.state(id).1.is_empty());
        let (state, error) = bench.state(id);
        let is_refused = state == "dead" && error.contains("allow_networks");
        let is_no_name = error.contains("no connection") && host.ends_with('.');
        assert!(is_refused || is_no_name, "{host}: {state}: {error}");
        refused += usize::from(is_refused);
    }
    assert!(refused >= spellings.len() - 1, "{refused}");
    assert_eq!(bench.provider.seen().len(), 0, "the provider was never reached");
}

#[test]
fn a_network_that_is_allowed_is_reached() {
    let mut bench = Bench::asleep();
    bench.configure(&anywhere(&format!(
        "{UNKEYED}failures_max = 1\nallow_networks = [\"127.0.0.0/8\"]\n"
    )));
    bench.run();
    let port = bench.provider.address.port();
    for host in ["127.0.0.1", "localhost", "2130706433"] {
        let id = bench.stage_as("hook", Some(&format!("http://{host}:{port}/hook")), "{}");
        bench.wait_for(id, "delivered");
    }
    let id = bench.stage_as("hook", Some("http://10.0.0.1/"), "{}");
    assert!(bench.wait_for(id, "dead").contains("10.0.0.1, which is private"));
}

#[test]
fn an_effect_goes_only_where_its_kind_may_go() {
    let bench = Bench::start(&format!(
        "{UNKEYED}failures_max = 1\ndestinations = [\"http://127.0.0.1:1/\", \"https://hooks.example/in\"]\n"
    ));
    let provider = bench.provider.address;
    for (url, why) in [
        (format!("http://{provider}/mail"), "`destinations`"),
        ("https://hooks.example/inner".into(), "`destinations`"),
        ("https://hooks.example/in/../out".into(), "`..`"),
        ("https://hooks.example/in/..;/out".into(), "`..`"),
        ("https://hooks.example/in/..%2fout".into(), "%2f"),
        ("ftp://hooks.example/in".into(), "neither http"),
        (format!("http://ann:secret@{provider}/mail"), "a password"),
        ("no url".into(), "is not a URL"),
    ] {
        let id = bench.stage_as("mail", Some(&url), "{}");
        let error = bench.wait_for(id, "dead");
        assert!(error.contains(why) && !error.contains("secret"), "{url}: {error}");
    }
    assert_eq!(bench.provider.seen().len(), 0);
}

/// An effect that may have been done is not dead because its destination is not permitted any more.
#[test]
fn a_refused_destination_buries_nothing_that_was_sent() {
    let mut bench = Bench::asleep();
    // It is tried again an hour later.
    bench.configure(&bench.mail(KEYED).replace("\"1ms\"", "\"1h\""));
    bench.run();
    bench.provider.script("/mail", vec![Step::Drop]);
    let id = bench.stage();
    until("it was sent", || bench.state(id).1.contains("no answer"));
    bench.signal("TERM");
    assert_eq!(bench.wait_for_end(), Some(0));
    // By then nobody may connect to its receiver any more.
    let closed = bench.mail(&format!("{KEYED}failures_max = 2\n"));
    bench.configure(&closed.replace("127.0.0.0/8", "10.0.0.0/8"));
    bench.sql("UPDATE retrysafe.effect SET at = 0");
    bench.run();
    let error = bench.wait_for(id, "unknown");
    assert!(error.contains("allow_networks"), "{error}");
    assert_eq!(bench.provider.count("/mail"), 1);
}

/// Nothing listens there: not a byte has left, whatever the receiver remembers.
#[test]
fn a_receiver_out_of_reach_has_done_nothing() {
    let mut bench = Bench::asleep();
    let nobody = "http://127.0.0.1:1/mail";
    let no_name = "http://no-such-host.invalid/mail";
    let near = "allow_networks = [\"127.0.0.0/8\"]\nfailures_max = 2\n";
    bench.configure(&format!(
        "[effects.mail]\nurl = \"{nobody}\"\n{SOON}{near}{UNKEYED}\
         [effects.other]\nurl = \"{no_name}\"\n{SOON}{near}{UNKEYED}"
    ));
    bench.run();
    let id = bench.stage();
    let error = bench.wait_for(id, "dead");
    assert!(error.contains("no connection to http://127.0.0.1:1"), "{error}");
    let id = bench.stage_as("other", None, "{}");
    let error = bench.wait_for(id, "dead");
    assert!(error.contains("no connection to http://no-such-host.invalid"), "{error}");
}

/// A proxy of the environment would see what was staged, and would resolve names by itself.
#[test]
fn no_proxy_of_the_environment_is_used() {
    let mut bench = Bench::asleep();
    let proxy = super::kit::Upstream::start();
    bench.configure(&bench.mail(KEYED));
    let url = format!("http://{}", proxy.address);
    bench.run_with(&[("http_proxy", &url), ("HTTP_PROXY", &url), ("ALL_PROXY", &url)]);
    bench.provider.script("/mail", vec![reply(200, "{}")]);
    let id = bench.stage();
    bench.wait_for(id, "delivered");
    assert_eq!((proxy.seen().len(), bench.provider.count("/mail")), (0, 1));
}
