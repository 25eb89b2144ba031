use hmac::Mac as _;
use http::HeaderValue;

use super::super::scheme::{SignedContent, TOLERANCE};
use super::*;

const NOW: u64 = 1_800_000_000;
const BODY: &[u8] = br#"{"id":"evt_1","type":"charge.succeeded"}"#;
const PLAIN: &str = "whsec_secret of the tests, in plain text";
const STANDARD_SECRET: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";

fn at(seconds: u64) -> SystemTime {
    UNIX_EPOCH + Duration::from_secs(seconds)
}

fn header(name: &str) -> HeaderName {
    HeaderName::from_bytes(name.as_bytes()).unwrap()
}

fn slack() -> WebhookScheme {
    WebhookScheme::Hmac(HmacScheme {
        signature: header("x-slack-signature"),
        prefix: "v0=".into(),
        encoding: SignatureEncoding::Hex,
        timestamp: Some(header("x-slack-request-timestamp")),
        id: None,
        signed: SignedContent::parse("v0:{timestamp}:{body}").unwrap(),
    })
}

fn shop() -> WebhookScheme {
    WebhookScheme::Hmac(HmacScheme {
        signature: header("x-shop-hmac"),
        prefix: "".into(),
        encoding: SignatureEncoding::Base64,
        timestamp: None,
        id: Some(header("x-shop-id")),
        signed: SignedContent::parse("{id}|{body}").unwrap(),
    })
}

fn schemes() -> [WebhookScheme; 4] {
    [WebhookScheme::Stripe, WebhookScheme::Standard, slack(), shop()]
}

fn secret_of(scheme: &WebhookScheme, number: u8) -> WebhookSecret {
    match (scheme, number) {
        (WebhookScheme::Standard, 0) => scheme.secret(STANDARD_SECRET).unwrap(),
        (WebhookScheme::Standard, _) => {
            scheme.secret("whsec_plJ3nmyCDGBKInavdOK15jsl+d2aKKDYJ2zZt5GwGPk=").unwrap()
        }
        (_, number) => scheme.secret(&format!("{PLAIN} {number}")).unwrap(),
    }
}

fn hex(secret: &WebhookSecret, parts: &[&[u8]]) -> String {
    let bytes = secret.mac(parts).unwrap().finalize().into_bytes();
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The headers of an event that was signed at this time.
fn signed(scheme: &WebhookScheme, secret: &WebhookSecret, time: u64, body: &[u8]) -> HeaderMap {
    let mut headers = HeaderMap::new();
    let mut put = |name: &str, value: String| {
        headers.insert(header(name), HeaderValue::from_str(&value).unwrap());
    };
    match scheme {
        WebhookScheme::Stripe => {
            let digits = hex(secret, &[format!("{time}.").as_bytes(), body]);
            put("stripe-signature", format!("t={time},v1={digits},v0=00"));
        }
        WebhookScheme::Standard => {
            put("webhook-id", "msg_1".into());
            put("webhook-timestamp", time.to_string());
            put("webhook-signature", standard::sign(secret, "msg_1", time, body));
        }
        WebhookScheme::Hmac(of) if of.timestamp.is_some() => {
            let digits = hex(secret, &[format!("v0:{time}:").as_bytes(), body]);
            put("x-slack-signature", format!("v0={digits}"));
            put("x-slack-request-timestamp", time.to_string());
        }
        WebhookScheme::Hmac(_) => {
            let mac = secret.mac(&[b"order-7|", body]).unwrap().finalize().into_bytes();
            put("x-shop-hmac", BASE64.encode(mac));
            put("x-shop-id", "order-7".into());
        }
    }
    headers
}

fn verify(
    scheme: &WebhookScheme,
    secrets: &[WebhookSecret],
    headers: &HeaderMap,
    body: &[u8],
    now: u64,
) -> Result<VerifiedWebhook, WebhookFault> {
    let verifier = WebhookVerifier { scheme: scheme.clone(), tolerance: TOLERANCE };
    verifier.verify(secrets, headers, body, at(now))
}

#[test]
fn an_event_of_its_provider_verifies_with_either_of_two_secrets() {
    for scheme in schemes() {
        let secrets = [secret_of(&scheme, 1), secret_of(&scheme, 0)];
        for secret in &secrets {
            let headers = signed(&scheme, secret, NOW, BODY);
            let verified = verify(&scheme, &secrets, &headers, BODY, NOW + 10).unwrap();
            let has_time = scheme != shop();
            assert_eq!(verified.signed_at, has_time.then(|| at(NOW)), "{scheme:?}");
            let id = match scheme {
                WebhookScheme::Standard => Some("msg_1"),
                WebhookScheme::Hmac(_) if !has_time => Some("order-7"),
                WebhookScheme::Stripe | WebhookScheme::Hmac(_) => None,
            };
            assert_eq!(verified.id.as_deref(), id);
        }
        let foreign = signed(&scheme, &secret_of(&scheme, 2), NOW, BODY);
        let told = verify(&scheme, &secrets[1..], &foreign, BODY, NOW);
        assert_eq!(told, Err(WebhookFault::SignatureWrong), "{scheme:?}: a wrong secret");
        let told = verify(&scheme, &[], &foreign, BODY, NOW);
        assert_eq!(told, Err(WebhookFault::SignatureWrong), "{scheme:?}: no secret at all");
    }
}

/// Whoever changes one bit of anything that is signed is refused.
#[test]
fn every_flipped_bit_of_every_signed_part_is_refused() {
    for scheme in schemes() {
        let secrets = [secret_of(&scheme, 0)];
        let headers = signed(&scheme, &secrets[0], NOW, BODY);
        for at in 0..BODY.len() * 8 {
            let mut body = BODY.to_vec();
            body[at / 8] ^= 1 << (at % 8);
            let told = verify(&scheme, &secrets, &headers, &body, NOW);
            assert_eq!(told, Err(WebhookFault::SignatureWrong), "{scheme:?}: bit {at} of the body");
        }
        let names: Vec<HeaderName> = headers.keys().cloned().collect();
        for name in names {
            let value = headers[&name].as_bytes().to_vec();
            // What follows Stripe's v1 belongs to another scheme.
            let end = value.windows(3).position(|part| part == b",v0").unwrap_or(value.len());
            for at in 0..end * 8 {
                let mut bytes = value.clone();
                bytes[at / 8] ^= 1 << (at % 8);
                // Hexadecimal digits mean the same in capitals, and a padding bit of base64 nothing.
                if bytes[at / 8].eq_ignore_ascii_case(&value[at / 8]) && name != "webhook-id" {
                    continue;
                }
                let Ok(flipped) = HeaderValue::from_bytes(&bytes) else { continue };
                let mut headers = headers.clone();
                headers.insert(&name, flipped);
                let told = verify(&scheme, &secrets, &headers, BODY, NOW);
                assert!(told.is_err(), "{scheme:?}: bit {at} of {name}: {bytes:?}");
            }
        }
    }
}

#[test]
fn an_old_event_and_one_of_the_future_are_refused() {
    for scheme in schemes().into_iter().filter(|scheme| *scheme != shop()) {
        let secrets = [secret_of(&scheme, 0)];
        let headers = signed(&scheme, &secrets[0], NOW, BODY);
        let tolerance = TOLERANCE.as_secs();
        for (now, told) in [
            (NOW + tolerance, None),
            (NOW + tolerance + 1, Some(WebhookFault::TooOld)),
            (NOW - tolerance, None),
            (NOW - tolerance - 1, Some(WebhookFault::TooEarly)),
        ] {
            assert_eq!(verify(&scheme, &secrets, &headers, BODY, now).err(), told, "{scheme:?}");
        }
        // An old event that is forged is forged.
        let forged = signed(&scheme, &secret_of(&scheme, 2), NOW, BODY);
        let told = verify(&scheme, &secrets, &forged, BODY, NOW + 10 * tolerance);
        assert_eq!(told, Err(WebhookFault::SignatureWrong));
    }
}

#[test]
fn a_header_that_is_missing_twice_there_or_nonsense_is_refused() {
    for scheme in schemes() {
        let secrets = [secret_of(&scheme, 0)];
        let right = signed(&scheme, &secrets[0], NOW, BODY);
        for name in right.keys() {
            let mut headers = right.clone();
            headers.remove(name);
            let told = verify(&scheme, &secrets, &headers, BODY, NOW);
            assert_eq!(told, Err(WebhookFault::HeaderMissing(name.clone())));
            let mut headers = right.clone();
            headers.append(name, right[name].clone());
            let told = verify(&scheme, &secrets, &headers, BODY, NOW);
            assert_eq!(told, Err(WebhookFault::HeaderRepeated(name.clone())));
            for nonsense in ["", "=", "t=", "t=x,v1=00", "v1,", "\t", "sha256=zz", "-1"] {
                let mut headers = right.clone();
                headers.insert(name, HeaderValue::from_static(nonsense));
                assert!(
                    verify(&scheme, &secrets, &headers, BODY, NOW).is_err(),
                    "{name}: {nonsense}"
                );
            }
        }
    }
}

#[test]
fn stripe_may_send_several_signatures_and_one_time_only() {
    let scheme = WebhookScheme::Stripe;
    let secrets = [secret_of(&scheme, 0)];
    let right = hex(&secrets[0], &[format!("{NOW}.").as_bytes(), BODY]);
    let wrong = "0".repeat(64);
    let many = format!(",v1={wrong}").repeat(SIGNATURES_MAX);
    for (line, is_right) in [
        (format!("t={NOW},v1={wrong},v1={right}"), true),
        (format!("t={NOW}, v1={right}"), true),
        (format!("v1={right},t={NOW}"), true),
        (format!("t={NOW},v1={}", right.to_uppercase()), true),
        (format!("t={NOW},t={NOW},v1={right}"), false),
        (format!("t={NOW},v0={right}"), false),
        (format!("v1={right}"), false),
        (format!("t={NOW}"), false),
        (format!("t=0{NOW},v1={right}"), false),
        (format!("t={NOW}{many},v1={right}"), false),
        (format!("t={NOW},v1={}", &right[..62]), false),
    ] {
        let mut headers = HeaderMap::new();
        headers.insert(STRIPE_SIGNATURE, HeaderValue::from_str(&line).unwrap());
        assert_eq!(verify(&scheme, &secrets, &headers, BODY, NOW).is_ok(), is_right, "{line}");
    }
}

#[test]
fn what_is_believed_must_be_signed() {
    let WebhookScheme::Hmac(slack) = slack() else { panic!() };
    assert_eq!(slack.check(), Ok(()));
    assert!(HmacScheme { timestamp: None, ..slack.clone() }.check().is_err());
    assert!(HmacScheme { signed: SignedContent::body(), ..slack.clone() }.check().is_err());
    assert!(HmacScheme { id: Some(header("x-id")), ..slack }.check().is_err());
    for text in ["", "{timestamp}", "{body}.{timestamp}", "{other}{body}", "{body}{body}"] {
        assert!(SignedContent::parse(text).is_err(), "{text}");
    }
    assert_eq!(SignedContent::parse("{body}"), Ok(SignedContent::body()));
}

#[test]
fn what_is_no_secret_is_refused_and_not_shown() {
    for (text, why) in [
        ("planted", "does not begin"),
        ("whsec_planted!", "not base64"),
        ("whsec_cGxhbnRlZA==", "24 to 64 bytes"),
    ] {
        let told = WebhookSecret::standard(text).err().unwrap();
        assert!(told.contains(why) && !told.contains("planted"), "{told}");
    }
    assert!(WebhookSecret::plain("planted").err().unwrap().contains("16 characters"));
    assert!(!format!("{:?}", secret_of(&WebhookScheme::Stripe, 0)).contains("tests"));
}
