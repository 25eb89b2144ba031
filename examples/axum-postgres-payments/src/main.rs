//! Payments whose row and stored answer are one commit.
//!
//! ```sh
//! export DATABASE_URL=postgres://postgres@localhost/postgres
//! cargo run -p axum-postgres-payments
//! curl -i localhost:3000/payments -H 'authorization: Bearer alice' -H 'idempotency-key: order-42' \
//!      -H 'content-type: application/json' -d '{"order": "order-42", "amount": 100}'
//! ```
//!
//! The payment and the answer that says so are committed together. Kill the process wherever you like:
//! either both are there, and a retry is answered from the record, or neither is. The unique constraint
//! on the order is the last net: it holds even for callers who send no key at all.

use axum::http::StatusCode;
use axum::http::header::AUTHORIZATION;
use axum::routing::post;
use axum::{Json, Router, middleware};
use retrysafe::core::{Policy, Scope};
use retrysafe::layer::{Attempt, IdempotencyLayer};
use retrysafe::stores::postgres::PostgresStore;
use retrysafe::transactions::{Transactions, Tx};
use retrysafe::upkeep::Upkeep;
use serde::{Deserialize, Serialize};
use sqlx::PgPool;
use tokio::net::TcpListener;

#[derive(Deserialize)]
struct Order {
    order: String,
    amount: i64,
}

#[derive(Serialize)]
struct Payment {
    payment: i64,
    amount: i64,
}

const TABLE: &str = "CREATE TABLE IF NOT EXISTS payment (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    \"order\" text NOT NULL UNIQUE,
    amount bigint NOT NULL,
    -- Which record this payment belongs to; it outlives the record.
    record bytea REFERENCES retrysafe.record (id) ON DELETE SET NULL
)";

async fn pay(
    attempt: Attempt,
    mut tx: Tx,
    Json(order): Json<Order>,
) -> Result<(StatusCode, Json<Payment>), StatusCode> {
    let row: (i64,) = sqlx::query_as(
        "INSERT INTO payment (\"order\", amount, record) VALUES ($1, $2, $3) RETURNING id",
    )
    .bind(&order.order)
    .bind(order.amount)
    .bind(attempt.id().as_bytes().to_vec())
    .fetch_one(&mut **tx)
    .await
    .map_err(|error| match error.as_database_error() {
        // Paid under another key: the last net.
        Some(refusal) if refusal.is_unique_violation() => StatusCode::CONFLICT,
        Some(_) | None => StatusCode::INTERNAL_SERVER_ERROR,
    })?;
    Ok((StatusCode::CREATED, Json(Payment { payment: row.0, amount: order.amount })))
}

fn api(pool: PgPool, store: PostgresStore) -> Router {
    let policy = Policy::default().strict();
    let transactions = Transactions::new(pool, store.clone()).policy(policy.clone());
    Router::new()
        .route("/payments", post(pay))
        .layer(middleware::from_fn_with_state(transactions, Transactions::run))
        .layer(IdempotencyLayer::new(store).policy(policy).scope(|parts| {
            let credential = parts.headers.get(AUTHORIZATION)?;
            let digest = Scope::digest_of(credential.as_bytes());
            Some(Scope::of([("account", digest.as_bytes())]))
        }))
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let url = std::env::var("DATABASE_URL")?;
    let address = std::env::var("LISTEN").unwrap_or_else(|_| "127.0.0.1:3000".into());
    let store = PostgresStore::connect(&url).await?;
    let pool = PgPool::connect(&url).await?;
    sqlx::raw_sql(TABLE).execute(&pool).await?;
    let _upkeep = Upkeep::new(store.clone()).start();
    let listener = TcpListener::bind(address).await?;
    axum::serve(listener, api(pool, store)).await?;
    Ok(())
}
