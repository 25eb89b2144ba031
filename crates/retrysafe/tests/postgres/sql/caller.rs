//! How does an application ask in SQL?
//!
//! As any driver would: one connection, parameters, and what the functions answer. Nothing of the library is used here.

use tokio_postgres::error::SqlState;
use tokio_postgres::types::ToSql;
use tokio_postgres::{Client, Row};

/// The answer of a function, or the SQLSTATE of its refusal.
pub(super) type Answer<T> = Result<T, String>;

/// An application with one connection.
pub(super) struct Caller {
    pub(super) db: Client,
}

/// Who asks for what, as far as a begin needs to know it.
#[derive(Clone, Debug)]
pub(super) struct Asked {
    pub(super) scope: Vec<u8>,
    pub(super) key: String,
    pub(super) fingerprint: Vec<u8>,
    pub(super) flows: Vec<String>,
    pub(super) ttl_ms: i64,
    pub(super) lease_ms: i64,
    pub(super) owner: i64,
    pub(super) mark: Option<Vec<u8>>,
    pub(super) request_id: Option<String>,
}

/// What a begin answers.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Begun {
    pub(super) decision: String,
    pub(super) id: Vec<u8>,
    pub(super) fence: Option<i64>,
    pub(super) recovery_point: Option<String>,
    pub(super) flow: Option<String>,
    pub(super) input: Option<Vec<u8>>,
    pub(super) outputs: Option<Vec<Vec<u8>>>,
    pub(super) status: Option<i32>,
    pub(super) body: Option<Vec<u8>>,
    pub(super) retry_after_ms: Option<i32>,
}

/// What is said at the end of an execution.
#[derive(Clone, Debug)]
pub(super) struct Told {
    pub(super) outcome: &'static str,
    pub(super) status: Option<i32>,
    /// As PostgreSQL writes it.
    pub(super) headers: Option<&'static str>,
    pub(super) body: Option<Vec<u8>>,
    pub(super) ttl_ms: Option<i64>,
}

/// What the check before a call answers.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Call {
    pub(super) decision: String,
    pub(super) call_key: Option<String>,
    pub(super) send_within_ms: Option<i32>,
    pub(super) recovery_point: Option<String>,
}

/// The attempt that somebody works for.
pub(super) type Owner<'a> = (&'a [u8], i64);

fn code(error: &tokio_postgres::Error) -> String {
    error.code().map_or_else(|| panic!("{error:?}"), SqlState::code).to_owned()
}

impl Caller {
    pub(super) async fn connect(url: &str) -> Self {
        Self { db: crate::kit::client(url).await }
    }

    pub(super) async fn ask(&self, sql: &str, values: &[&(dyn ToSql + Sync)]) -> Answer<Row> {
        self.db.query_one(sql, values).await.map_err(|error| code(&error))
    }

    pub(super) async fn begin(&self, asked: &Asked) -> Answer<Begun> {
        let sql = "CALL retrysafe.begin($1, $2, $3, $4, $5, $6, $7, $8, 'POST', '/rides', '/rides/1', $9)";
        let Asked { scope, key, fingerprint, flows, ttl_ms, lease_ms, owner, mark, request_id } =
            asked;
        let values: [&(dyn ToSql + Sync); 9] =
            [scope, key, fingerprint, flows, ttl_ms, lease_ms, owner, mark, request_id];
        self.ask(sql, &values).await.map(|row| Begun::read(&row))
    }

    /// Inside the transaction that is open on this connection.
    pub(super) async fn begin_in(&self, asked: &Asked) -> Answer<Begun> {
        let sql = "SELECT * FROM retrysafe.begin_in($1, $2, $3, $4, $5, $6, $7, 'POST', '/rides', '/rides/1', $8)";
        let Asked { scope, key, fingerprint, ttl_ms, lease_ms, owner, mark, request_id, .. } =
            asked;
        let values: [&(dyn ToSql + Sync); 8] =
            [scope, key, fingerprint, ttl_ms, lease_ms, owner, mark, request_id];
        self.ask(sql, &values).await.map(|row| Begun::read(&row))
    }

    pub(super) async fn guard(&self, (id, fence): Owner<'_>) -> Answer<()> {
        self.ask("SELECT retrysafe.guard($1, $2)", &[&id, &fence]).await.map(drop)
    }

    pub(super) async fn start(
        &self,
        (id, fence): Owner<'_>,
        flow: &str,
        input: &[u8],
    ) -> Answer<String> {
        let row =
            self.ask("CALL retrysafe.start($1, $2, $3, $4)", &[&id, &fence, &flow, &input]).await?;
        Ok(row.get(0))
    }

    pub(super) async fn advance(
        &self,
        (id, fence): Owner<'_>,
        from: &str,
        output: &[u8],
    ) -> Answer<String> {
        let row = self
            .ask("CALL retrysafe.advance($1, $2, $3, $4)", &[&id, &fence, &from, &output])
            .await?;
        Ok(row.get(0))
    }

    pub(super) async fn advance_in(
        &self,
        (id, fence): Owner<'_>,
        from: &str,
        output: &[u8],
    ) -> Answer<String> {
        let row = self
            .ask("SELECT retrysafe.advance_in($1, $2, $3, $4)", &[&id, &fence, &from, &output])
            .await?;
        Ok(row.get(0))
    }

    /// With a margin of nothing and a lease that is never renewed, so that the whole of `remembers_ms` but the
    /// deadline and 1 ms counts.
    pub(super) async fn about_to_call(
        &self,
        (id, fence): Owner<'_>,
        from: &str,
        request: &[u8],
        remembers_ms: Option<i64>,
        deadline_ms: i32,
    ) -> Answer<Call> {
        let sql = "CALL retrysafe.about_to_call($1, $2, $3, 'charge', $4, $5, $6, 0, 1)";
        let values: [&(dyn ToSql + Sync); 6] =
            [&id, &fence, &from, &request, &remembers_ms, &deadline_ms];
        let row = self.ask(sql, &values).await?;
        Ok(Call {
            decision: row.get("decision"),
            call_key: row.get("call_key"),
            send_within_ms: row.get("send_within_ms"),
            recovery_point: row.get("recovery_point"),
        })
    }

    pub(super) async fn call_not_sent(&self, (id, fence): Owner<'_>, from: &str) -> Answer<String> {
        let row =
            self.ask("SELECT retrysafe.call_not_sent($1, $2, $3)", &[&id, &fence, &from]).await?;
        Ok(row.get(0))
    }

    pub(super) async fn settle(
        &self,
        owner: Owner<'_>,
        told: &Told,
        from: Option<&str>,
    ) -> Answer<String> {
        self.settle_by(
            "CALL retrysafe.settle($1, $2, $3, $4, $5::text::text[], $6, $7, $8)",
            owner,
            told,
            from,
        )
        .await
    }

    pub(super) async fn settle_in(
        &self,
        owner: Owner<'_>,
        told: &Told,
        from: Option<&str>,
    ) -> Answer<String> {
        let sql = "SELECT retrysafe.settle_in($1, $2, $3, $4, $5::text::text[], $6, $7, $8)";
        self.settle_by(sql, owner, told, from).await
    }

    async fn settle_by(
        &self,
        sql: &str,
        (id, fence): Owner<'_>,
        told: &Told,
        from: Option<&str>,
    ) -> Answer<String> {
        let Told { outcome, status, headers, body, ttl_ms } = told;
        let values: [&(dyn ToSql + Sync); 8] =
            [&id, &fence, outcome, status, headers, body, &from, ttl_ms];
        Ok(self.ask(sql, &values).await?.get(0))
    }

    pub(super) async fn withdraw(&self, id: &[u8], owner: i64) -> Answer<bool> {
        Ok(self.ask("SELECT retrysafe.withdraw($1, $2)", &[&id, &owner]).await?.get(0))
    }

    pub(super) async fn renew(
        &self,
        (id, fence): Owner<'_>,
        lease_ms: i64,
        lease_max_ms: i64,
    ) -> Answer<i32> {
        let sql = "SELECT retrysafe.renew($1, $2, $3, $4)";
        Ok(self.ask(sql, &[&id, &fence, &lease_ms, &lease_max_ms]).await?.get(0))
    }

    pub(super) async fn run(&self, sql: &str) -> Answer<()> {
        self.db.batch_execute(sql).await.map_err(|error| code(&error))
    }
}

impl Begun {
    fn read(row: &Row) -> Self {
        Self {
            decision: row.get("decision"),
            id: row.get("id"),
            fence: row.get("fence"),
            recovery_point: row.get("recovery_point"),
            flow: row.get("flow"),
            input: row.get("input"),
            outputs: row.get("outputs"),
            status: row.get("status"),
            body: row.get("body"),
            retry_after_ms: row.get("retry_after_ms"),
        }
    }

    pub(super) fn owner(&self) -> Owner<'_> {
        (&self.id, self.fence.expect("it executes"))
    }
}

impl Asked {
    /// A plain request with this key, on a lease of a minute.
    pub(super) fn plain(key: &str) -> Self {
        Self {
            scope: b"6:tenant,4:acme,".to_vec(),
            key: key.to_owned(),
            fingerprint: vec![3; 41],
            flows: vec![],
            ttl_ms: 3_600_000,
            lease_ms: 60_000,
            owner: 7,
            mark: None,
            request_id: None,
        }
    }

    /// The same by somebody who can go on with the flow `ride/1`.
    pub(super) fn flow(key: &str) -> Self {
        Self { flows: vec!["ride/1".to_owned()], ..Self::plain(key) }
    }
}

impl Told {
    pub(super) fn completed(body: &str) -> Self {
        let headers = Some("{{content-type,text/plain}}");
        Self {
            outcome: "completed",
            status: Some(201),
            headers,
            body: Some(body.into()),
            ttl_ms: None,
        }
    }

    pub(super) fn outcome(outcome: &'static str) -> Self {
        Self { outcome, status: None, headers: None, body: None, ttl_ms: None }
    }
}
