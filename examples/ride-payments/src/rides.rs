//! What is a ride?
//!
//! A row, a charge at the provider, and a receipt. Each phase writes what belongs to it, and nothing else. The receipt is staged
//! with the last rows, and a worker mails it.

use std::error::Error;

use bytes::Bytes;
use http::{Response, StatusCode};
use retrysafe::outbox::{Effect, Outbox};
use retrysafe::phases::{CallEnd, Flow, Next, PhaseError, Provider};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use sqlx::PgPool;

use crate::break_points::BreakPoints;

/// What a caller asks for.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Booking {
    /// The caller's own number for it.
    pub(crate) booking: String,
    place: String,
    cents: i64,
}

/// What is sent to the provider.
#[derive(Debug, Serialize)]
struct Charge {
    ride: String,
    cents: i64,
}

/// What the provider answers.
#[derive(Debug, Deserialize)]
struct Charged {
    charge: String,
}

/// The tables, with the constraints that are the last net.
const TABLES: &str = include_str!("../tables.sql");

/// Makes the tables. Several processes may do so at once.
pub(crate) async fn make_tables(pool: &PgPool) -> sqlx::Result<()> {
    let mut tx = pool.begin().await?;
    // `IF NOT EXISTS` alone lets two that make one table at once collide.
    sqlx::raw_sql("SELECT pg_advisory_xact_lock(7433)").execute(&mut *tx).await?;
    sqlx::raw_sql(TABLES).execute(&mut *tx).await?;
    tx.commit().await
}

/// The operation: ride, charge, receipt.
pub(crate) fn create_ride(
    provider: Provider,
    payments: &str,
    outbox: Outbox,
    breaks: BreakPoints,
) -> Result<Flow<Booking>, Box<dyn Error>> {
    let at_ride = breaks.clone();
    let at_prepare = breaks.clone();
    let at_charge = breaks.clone();
    let at_receipt = breaks;
    let charges = format!("{payments}/charges");
    let receipts = format!("{payments}/receipts");
    // A connection for each call, and each call once: what an error says is then about this call.
    let client = reqwest::Client::builder()
        .redirect(reqwest::redirect::Policy::none())
        .retry(reqwest::retry::never())
        .pool_max_idle_per_host(0)
        .build()?;
    let flow = Flow::named("create_ride", 1)
        .tx("ride_created", async move |mut tx, request: Booking, ()| {
            let Booking { booking, place, cents } = request;
            at_ride.at(&booking, "ride begun").await?;
            let insert = "INSERT INTO ride (booking, place, cents) VALUES ($1, $2, $3)
                ON CONFLICT (booking) DO NOTHING RETURNING id";
            let insert = sqlx::query_scalar(insert).bind(&booking).bind(place).bind(cents);
            let ride: Option<i64> = insert.fetch_optional(&mut *tx).await?;
            let Some(ride) = ride else {
                let booked = json!({"error": "this booking has a ride already"});
                return Ok(Next::Respond(answer(StatusCode::CONFLICT, &booked)?));
            };
            let event = sqlx::query("INSERT INTO ride_event (ride, what) VALUES ($1, 'created')");
            event.bind(ride).execute(&mut *tx).await?;
            at_ride.at(&booking, "ride to commit").await?;
            Ok(Next::Done(ride))
        })
        .call(
            "charge_created",
            provider,
            move |request: Booking, (_,)| {
                at_prepare.at_blocking(&request.booking, "charge to prepare")?;
                Ok(Charge { ride: request.booking, cents: request.cents })
            },
            async move |call, charge: Charge| {
                at_charge.at(&charge.ride, "charge to send").await?;
                let asked = client.post(charges).header("idempotency-key", call.key());
                let told = match asked.json(&charge).send().await {
                    Ok(told) => told,
                    Err(error) => return Ok(CallEnd::of_reqwest(error)),
                };
                let status = told.status();
                let body = told.bytes().await?;
                at_charge.at_blocking(&charge.ride, "charge answered")?;
                Ok(match status {
                    StatusCode::CREATED => {
                        CallEnd::Done(serde_json::from_slice::<Charged>(&body)?.charge)
                    }
                    StatusCode::PAYMENT_REQUIRED => {
                        let declined = json!({"error": "the card was declined"});
                        CallEnd::Respond(answer(StatusCode::PAYMENT_REQUIRED, &declined)?)
                    }
                    // A 5xx, and "this key is in use", say nothing about the charge.
                    other => CallEnd::Unknown(format!("the provider answered {other}").into()),
                })
            },
        )
        .respond("receipt_staged", async move |mut tx, request, (ride, charge)| {
            at_receipt.at(&request.booking, "receipt begun").await?;
            let paid = sqlx::query("UPDATE ride SET charge = $2 WHERE id = $1");
            paid.bind(ride).bind(&charge).execute(&mut *tx).await?;
            let text = format!("{} cents for {}, charge {charge}", request.cents, request.place);
            let mail = json!({"ride": request.booking, "text": text});
            let receipt = Effect::new("receipt").to(&receipts).json(&mail)?.name(&request.booking);
            outbox.stage(&mut tx, receipt).await?;
            at_receipt.at(&request.booking, "receipt to commit").await?;
            let booked = json!({"ride": ride, "charge": charge, "receipt": text});
            answer(StatusCode::CREATED, &booked)
        })?;
    Ok(flow)
}

fn answer(status: StatusCode, document: &Value) -> Result<Response<Bytes>, PhaseError> {
    let answer = Response::builder().status(status).header("content-type", "application/json");
    Ok(answer.body(document.to_string().into())?)
}
