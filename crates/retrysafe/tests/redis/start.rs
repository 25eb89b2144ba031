//! Which servers are refused, and what is said of those that are taken?

use retrysafe::stores::redis::{RedisStore, RedisUrl, Trust};

use crate::kit::server::Server;
use crate::kit::{new_store, prefix, shared};

async fn told(url: &str) -> String {
    let url: RedisUrl = url.parse().unwrap();
    match RedisStore::open(&url).await {
        Ok(_) => String::new(),
        Err(error) => error.to_string(),
    }
}

async fn init(url: &str) -> Result<(), String> {
    let url: RedisUrl = url.parse().unwrap();
    RedisStore::init(&url, Trust::AtOnce).await.map_err(|error| error.to_string())
}

#[tokio::test]
async fn a_server_that_evicts_is_refused() {
    let server = Server::start(&[("maxmemory-policy", "allkeys-lru")]);
    let told = init(&server.url()).await.unwrap_err();
    assert!(told.contains("allkeys-lru") && told.contains("noeviction"), "{told}");
    server.cli(&["CONFIG", "SET", "maxmemory-policy", "noeviction"]);
    init(&server.url()).await.unwrap();
    let _store = RedisStore::open(&server.url().parse().unwrap()).await.unwrap();
    // Every connection is verified, not only the first.
    server.cli(&["CONFIG", "SET", "maxmemory-policy", "volatile-ttl"]);
    let refused = self::told(&server.url()).await;
    assert!(refused.contains("volatile-ttl"), "{refused}");
}

#[tokio::test]
async fn a_replica_is_refused() {
    let master = Server::start(&[]);
    init(&master.url()).await.unwrap();
    let replica = Server::start(&[("replicaof", &format!("127.0.0.1 {}", master.port))]);
    replica.wait_for_sync(&master);
    let told = told(&replica.url()).await;
    assert!(told.contains("replica"), "{told}");
}

#[tokio::test]
async fn a_server_without_scripts_is_refused() {
    let server = Server::start(&[]);
    init(&server.url()).await.unwrap();
    server.cli(&["ACL", "SETUSER", "weak", "on", ">secret", "~*", "+@all", "-@scripting"]);
    let told = told(&format!("redis://weak:secret@127.0.0.1:{}", server.port)).await;
    assert!(told.contains("scripts") && !told.contains("secret"), "{told}");
}

#[tokio::test]
async fn a_user_needs_no_more_than_the_documentation_says() {
    let server = Server::start(&[]);
    let rights =
        ["~retrysafe:*", "+@read", "+@write", "+@scripting", "+@connection", "+info", "+time"];
    let mut command = vec!["ACL", "SETUSER", "plain", "on", ">secret"];
    command.extend(rights);
    server.cli(&command);
    let url = format!("redis://plain:secret@127.0.0.1:{}", server.port);
    init(&url).await.unwrap();
    let store = RedisStore::open(&url.parse().unwrap()).await.unwrap();
    // It may not ask for the configuration, and that is said.
    let said = store.durability();
    assert!(said.contains("appendonly no"), "{said}");
    let wrong = told(&format!("redis://plain:wrong@127.0.0.1:{}", server.port)).await;
    assert!(wrong.contains("refuses") && !wrong.contains("wrong"), "{wrong}");
}

#[tokio::test]
async fn a_redis_that_nobody_has_initialised_is_refused() {
    let url = format!("{}?prefix={}", shared().url(), prefix());
    let told = told(&url).await;
    assert!(told.contains("store init"), "{told}");
}

#[tokio::test]
async fn it_is_said_what_a_crash_loses() {
    let server = Server::start(&[("appendonly", "yes"), ("appendfsync", "everysec")]);
    let (url, store) = new_store(&server.url(), "").await;
    assert!(store.durability().contains("the last second may be lost"), "{}", store.durability());
    assert!(store.durability().contains("a retry that comes later"), "{}", store.durability());
    let strict = format!("{}?require=aof-always", server.url());
    let refused = told(&strict).await;
    assert!(refused.contains("appendfsync always"), "{refused}");
    server.cli(&["CONFIG", "SET", "appendfsync", "always"]);
    let store = RedisStore::open(&url).await.unwrap();
    assert!(store.durability().contains("nothing is lost when Redis dies"));
    init(&strict).await.unwrap();
    assert_eq!(told(&strict).await, "");
}

#[tokio::test]
async fn too_few_replicas_are_refused_at_start_and_in_use() {
    let server = Server::start(&[]);
    let refused = init(&format!("{}?min_replicas=1", server.url())).await.unwrap_err();
    assert!(refused.contains("min-replicas-to-write"), "{refused}");
}

#[tokio::test]
async fn sockets_of_this_machine_and_databases_are_understood() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("redis.sock");
    let server = Server::start(&[("unixsocket", socket.to_str().unwrap())]);
    let url = format!("redis+unix://{}?db=3", socket.display());
    init(&url).await.unwrap();
    assert_eq!(told(&url).await, "");
    assert_eq!(server.cli(&["-n", "3", "EXISTS", "retrysafe:{00}:meta"]), "1");
    assert_eq!(server.cli(&["EXISTS", "retrysafe:{00}:meta"]), "0");
}

#[tokio::test]
async fn an_encrypted_connection_is_verified() {
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str| folder.path().join(name).display().to_string();
    let made = rcgen::generate_simple_self_signed(vec!["localhost".into()]).unwrap();
    std::fs::write(file("cert"), made.cert.pem()).unwrap();
    std::fs::write(file("key"), made.signing_key.serialize_pem()).unwrap();
    let tls_port = crate::kit::server::free_port();
    let _server = Server::start(&[
        ("tls-port", &tls_port.to_string()),
        ("tls-cert-file", &file("cert")),
        ("tls-key-file", &file("key")),
        ("tls-ca-cert-file", &file("cert")),
        ("tls-auth-clients", "no"),
    ]);
    let trusted = format!("rediss://localhost:{tls_port}?sslrootcert={}", file("cert"));
    init(&trusted).await.unwrap();
    assert_eq!(told(&trusted).await, "");
    let stranger = told(&format!("rediss://localhost:{tls_port}")).await;
    assert!(stranger.contains("encrypted"), "{stranger}");
    let other_name = told(&trusted.replace("localhost", "127.0.0.1")).await;
    assert!(other_name.contains("encrypted"), "{other_name}");
}

#[tokio::test]
async fn a_server_that_is_no_cluster_is_not_taken_for_one() {
    let url = shared().url().replace("redis://", "redis-cluster://");
    let told = init(&url).await.unwrap_err();
    assert!(told.contains("cluster"), "{told}");
}
