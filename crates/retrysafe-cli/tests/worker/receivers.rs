//! To whom is an effect sent again that may have been sent before?
//!
//! A receiver that remembers keys remembers those that it was sent. Another one has never seen them: what it is sent is done a
//! second time, and nobody notices.

use super::bench::{Bench, KEYED, NEAR, SOON};
use super::kit::{Gate, Step, Upstream, reply};

/// A worker whose provider has done an effect, and that was killed before it heard of that; and the effect's number.
fn killed_after_sending(table: &str, destination: Option<&str>) -> (Bench, i64) {
    let mut bench = Bench::asleep();
    let provider = bench.provider.address.to_string();
    bench.configure(&table.replace("PROVIDER", &provider));
    let gate = Gate::default();
    let held = Step::Held(gate.clone(), Box::new(reply(200, "{}")));
    bench.provider.script("/mail", vec![held, reply(200, "{}")]);
    bench.run();
    let destination = destination.map(|url| url.replace("PROVIDER", &provider));
    let id = bench.stage_as("mail", destination.as_deref(), "{}");
    bench.provider.wait("/mail", 1);
    bench.kill();
    gate.open();
    bench.end_leases();
    (bench, id)
}

#[test]
fn what_may_have_been_sent_is_not_sent_to_another_receiver() {
    let table = format!("[effects.mail]\nurl = \"http://PROVIDER/mail\"\n{NEAR}{SOON}{KEYED}");
    for what in ["url", "key_header", "method"] {
        let other = Upstream::start();
        let changed = match what {
            "url" => table.replace("PROVIDER", &other.address.to_string()),
            "key_header" => format!("{table}key_header = \"X-Request-Key\"\n"),
            _ => format!("{table}method = \"PUT\"\n"),
        };
        let (mut bench, id) = killed_after_sending(&table, None);
        bench.configure(&changed.replace("PROVIDER", &bench.provider.address.to_string()));
        bench.run();
        let why = bench.wait_for(id, "unknown");
        assert!(why.contains("another receiver"), "{what}: {why}");
        // Those that were never sent are sent to whoever the receiver is now.
        let next = bench.stage();
        bench.wait_for(next, "delivered");
        let sent = (bench.provider.count("/mail"), other.count("/mail"));
        assert_eq!(sent, if what == "url" { (1, 1) } else { (2, 0) }, "{what}");
    }
}

/// An effect that names its own destination goes there, whatever `url` says.
#[test]
fn another_url_changes_nothing_for_an_effect_with_a_destination_of_its_own() {
    let table = format!(
        "[effects.mail]\nurl = \"http://PROVIDER/others\"\ndestinations = [\"http:\"]\n{NEAR}{SOON}{KEYED}"
    );
    let (mut bench, id) = killed_after_sending(&table, Some("http://PROVIDER/mail"));
    let changed = table.replace("/others", "/elsewhere");
    bench.configure(&changed.replace("PROVIDER", &bench.provider.address.to_string()));
    bench.run();
    bench.wait_for(id, "delivered");
    assert_eq!(bench.provider.count("/mail"), 2);
}

/// What its receiver has refused for good was done by nobody: an operator sends it to another one.
#[test]
fn a_requeue_goes_to_the_receiver_that_the_kind_has_now() {
    let mut bench = Bench::start(KEYED);
    bench.provider.script("/mail", vec![reply(422, "{}")]);
    let id = bench.stage();
    bench.wait_for(id, "dead");
    bench.kill();
    bench.configure(&bench.mail(KEYED).replace("/mail\"", "/right\""));
    bench.run();
    assert_eq!(bench.sql(&format!("SELECT retrysafe.requeue_effect_v1({id}) IS NULL")), "t");
    bench.sql("NOTIFY \"retrysafe staged\"");
    bench.wait_for(id, "delivered");
    assert_eq!((bench.provider.count("/mail"), bench.provider.count("/right")), (1, 1));
}
