//! A payment provider that counts, and that fails as it is told.
//!
//! ```sh
//! cargo run -p payment-provider
//! curl -s localhost:4000/charges -H 'idempotency-key: k1' -d '{"ride": "ride-1", "cents": 1200}'
//! curl -s -X PUT localhost:4000/modes/ride-2 -d '{"mode": "reset_after_charging", "times": 1}'
//! curl -s localhost:4000/charges
//! ```
//!
//! | variable | meaning |
//! | --- | --- |
//! | `LISTEN` | where it listens: `127.0.0.1:4000` |
//! | `MODE` | what happens to every request, as JSON: `{"mode": "slow", "ms": 500}` |
//! | `TAKES_KEYS` | `false`: a key does not count |
//! | `REMEMBERS_MS` | for how long a key is remembered; unset is for ever |

#![allow(clippy::print_stdout, reason = "a program of the terminal prints")]

use std::error::Error;

use payment_provider::{ModeChange, PaymentProvider, Settings};

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let address = std::env::var("LISTEN").unwrap_or_else(|_| "127.0.0.1:4000".into()).parse()?;
    let refuses_keys = std::env::var("TAKES_KEYS").is_ok_and(|taken| taken == "false");
    let remembers_ms = std::env::var("REMEMBERS_MS").ok().map(|ms| ms.parse()).transpose()?;
    let settings = Settings { takes_keys: !refuses_keys, remembers_ms };
    let provider = PaymentProvider::start(address, settings).await?;
    if let Ok(mode) = std::env::var("MODE") {
        provider.set_mode("*", serde_json::from_str::<ModeChange>(&mode)?);
    }
    println!("listening on {}", provider.address());
    std::future::pending::<()>().await;
    Ok(())
}
