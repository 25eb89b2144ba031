//! How does sqlx reach the server that a URL names?
//!
//! The outbox and the phases work over pools of the application's, which are sqlx's. A program that has only the store's URL
//! makes its pool from this, with the same rules for TLS.

use sqlx::postgres::{PgConnectOptions, PgSslMode};
use tokio_postgres::config::Host;

use super::fault::ConnectError;
use super::settings::{PostgresUrl, Tls};

/// The port of a server that names none.
const PORT: u16 = 5432;

impl PostgresUrl {
    /// What sqlx needs to connect to the same database. For a verified connection sqlx needs one of its features for TLS.
    ///
    /// # Errors
    ///
    /// If the URL names several hosts, or has startup options: sqlx takes neither.
    pub fn sqlx_options(&self) -> Result<PgConnectOptions, ConnectError> {
        let config = &self.settings.config;
        let [host] = config.get_hosts() else {
            return Err(ConnectError::new(
                "the URL names several hosts, and sqlx connects to one: name the one behind which the primary is found",
            ));
        };
        if config.get_options().is_some() {
            return Err(ConnectError::new(
                "the URL has `options`, which sqlx does not take: set them for the role, with ALTER ROLE … SET",
            ));
        }
        let port = config.get_ports().first().copied().unwrap_or(PORT);
        // Poolers refuse startup parameters that they do not know; nothing of ours has fractions.
        let options = PgConnectOptions::new_without_pgpass().extra_float_digits(None);
        let mut options = options.port(port);
        options = match host {
            Host::Tcp(name) => options.host(name),
            Host::Unix(folder) => options.socket(folder),
        };
        if let Some(user) = config.get_user() {
            options = options.username(user);
        }
        if let Some(password) = config.get_password() {
            options = options.password(&String::from_utf8_lossy(password));
        }
        if let Some(database) = config.get_dbname() {
            options = options.database(database);
        }
        if let Some(name) = config.get_application_name() {
            options = options.application_name(name);
        }
        Ok(match &self.settings.tls {
            Tls::Off => options.ssl_mode(PgSslMode::Disable),
            Tls::Verified(None) => options.ssl_mode(PgSslMode::VerifyFull),
            Tls::Verified(Some(file)) => {
                options.ssl_mode(PgSslMode::VerifyFull).ssl_root_cert(file)
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(url: &str) -> Result<PgConnectOptions, String> {
        let url: PostgresUrl = url.parse().unwrap();
        url.sqlx_options().map_err(|error| error.to_string())
    }

    #[test]
    fn sqlx_goes_where_the_store_goes() {
        let local = options("postgres://ann:p%40ss@127.0.0.1:5433/shop?deadline=1s").unwrap();
        assert_eq!((local.get_host(), local.get_port()), ("127.0.0.1", 5433));
        assert_eq!((local.get_username(), local.get_database()), ("ann", Some("shop")));
        assert!(matches!(local.get_ssl_mode(), PgSslMode::Disable));
        assert_eq!(local.get_application_name(), Some("retrysafe"));
        let far = options("postgres://ann@db.example/shop").unwrap();
        assert!(matches!(far.get_ssl_mode(), PgSslMode::VerifyFull), "verified, as the store is");
        assert_eq!(far.get_port(), 5432);
        let socket = options("postgres://ann@%2Frun%2Fpg/shop").unwrap();
        assert_eq!(socket.get_socket().unwrap(), std::path::Path::new("/run/pg"));
    }

    #[test]
    fn what_sqlx_cannot_do_is_refused_with_its_cure() {
        let several = options("postgres://ann@a.example,b.example/shop").unwrap_err();
        assert!(several.contains("several hosts"), "{several}");
        let startup = options("postgres://ann@127.0.0.1/shop?options=-c%20a%3Db").unwrap_err();
        assert!(startup.contains("ALTER ROLE"), "{startup}");
    }
}
