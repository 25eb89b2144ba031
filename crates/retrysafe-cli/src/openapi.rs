//! Which operations of an API change something?
//!
//! Read from an OpenAPI document, in JSON or YAML: version 3, and Swagger 2. References inside the
//! document are followed. A path is told as the API is called: with the path of its servers before it.

use std::path::Path;

use http::Method;
use serde_json::Value;

/// One operation that changes something.
#[derive(Clone, Debug)]
pub(crate) struct Operation {
    pub method: Method,
    /// Its path as the document writes it.
    pub path: String,
    /// What stands before the path, one per server that the document names; empty where they have none.
    pub bases: Vec<String>,
    /// Whether the document declares the header of the key.
    pub is_declared: bool,
}

/// The methods that change something.
const METHODS: [Method; 4] = [Method::POST, Method::PUT, Method::PATCH, Method::DELETE];

/// Reads every operation that changes something.
///
/// # Errors
///
/// Why the document cannot be read.
pub(crate) fn operations(file: &Path) -> Result<Vec<Operation>, String> {
    let name = file.display();
    let text =
        std::fs::read_to_string(file).map_err(|error| crate::config::unreadable(file, &error))?;
    let is_json = text.trim_start().starts_with('{');
    let document: Value = if is_json {
        serde_json::from_str(&text).map_err(|error| error.to_string())
    } else {
        serde_saphyr::from_str(&text).map_err(|error| error.to_string())
    }
    .map_err(|error| format!("{name} is no OpenAPI document in JSON or YAML: {error}"))?;
    let paths = document.get("paths").and_then(Value::as_object);
    let paths = paths.ok_or_else(|| format!("{name} is no OpenAPI document: it has no `paths`"))?;
    let mut found = Vec::new();
    for (path, item) in paths {
        let item = followed(&document, item);
        for method in METHODS {
            let Some(operation) = item.get(method.as_str().to_lowercase()) else { continue };
            let is_declared = declares_key(&document, item) || declares_key(&document, operation);
            let bases = bases(&document, item, operation);
            found.push(Operation { method, path: path.clone(), bases, is_declared });
        }
    }
    Ok(found)
}

impl Operation {
    /// Its path as it is called, with something in place of its parameters.
    pub(crate) fn sample(&self, base: &str) -> String {
        let mut out = base.trim_end_matches('/').to_owned();
        let mut rest = self.path.as_str();
        while let Some((before, after)) = rest.split_once('{') {
            out.push_str(before);
            out.push('1');
            rest = after.split_once('}').map_or("", |(_, tail)| tail);
        }
        out.push_str(rest);
        out
    }
}

/// Whether an operation, or a path for all of its operations, declares the header of the key.
fn declares_key(document: &Value, of: &Value) -> bool {
    let parameters = of.get("parameters").and_then(Value::as_array);
    parameters.into_iter().flatten().any(|parameter| {
        let parameter = followed(document, parameter);
        let text = |member| parameter.get(member).and_then(Value::as_str).unwrap_or_default();
        text("in") == "header" && text("name").eq_ignore_ascii_case("idempotency-key")
    })
}

/// The paths of the servers: the operation's own, else those of its path, else the document's.
fn bases(document: &Value, item: &Value, operation: &Value) -> Vec<String> {
    let servers =
        [operation, item, document].into_iter().find_map(|of| of.get("servers")?.as_array());
    let swagger = document.get("basePath").and_then(Value::as_str).unwrap_or_default();
    let mut bases: Vec<String> = match servers {
        Some(servers) => servers.iter().filter_map(base_of).collect(),
        None => vec![swagger.trim_end_matches('/').to_owned()],
    };
    bases.sort();
    bases.dedup();
    if bases.is_empty() { vec![String::new()] } else { bases }
}

/// The path of a server's URL, its variables filled with their defaults.
fn base_of(server: &Value) -> Option<String> {
    let mut url = server.get("url")?.as_str()?.to_owned();
    for (name, variable) in server.get("variables").and_then(Value::as_object).into_iter().flatten()
    {
        let default = variable.get("default").and_then(Value::as_str).unwrap_or_default();
        url = url.replace(&format!("{{{name}}}"), default);
    }
    let path = match url.split_once("://") {
        Some((_, rest)) => rest.find('/').and_then(|at| rest.get(at..)).unwrap_or_default(),
        None => url.as_str(),
    };
    let path = path.split(['?', '#']).next().unwrap_or_default();
    Some(path.trim_end_matches('/').to_owned())
}

/// What a reference inside the document leads to.
fn followed<'a>(document: &'a Value, value: &'a Value) -> &'a Value {
    value
        .get("$ref")
        .and_then(Value::as_str)
        .and_then(|reference| reference.strip_prefix('#'))
        .and_then(|pointer| document.pointer(pointer))
        .unwrap_or(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Vec<Operation>, String> {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("api");
        std::fs::write(&file, text).unwrap();
        operations(&file)
    }

    fn told(text: &str) -> Vec<String> {
        let told = |operation: &Operation| {
            let called = operation.bases.iter().map(|base| operation.sample(base));
            let called = called.collect::<Vec<_>>().join(" ");
            format!("{} {called} {}", operation.method, operation.is_declared)
        };
        read(text).unwrap().iter().map(told).collect()
    }

    #[test]
    fn json_and_yaml_say_the_same() {
        let json = r##"{"openapi": "3.1.0", "servers": [{"url": "https://api.test/v1/"}], "paths": {
            "/payments": {"post": {"parameters": [{"$ref": "#/components/parameters/Key"}]}, "get": {}},
            "/orders/{id}": {"put": {"responses": {"200": {}}}, "delete": {"servers": [{"url": "/"}]}}},
            "components": {"parameters": {"Key": {"in": "header", "name": "Idempotency-Key"}}}}"##;
        let yaml = "openapi: 3.1.0\nservers:\n  - url: https://api.test/v1/\npaths:\n\
            \x20 /payments:\n    post:\n      parameters:\n        - $ref: '#/components/parameters/Key'\n\
            \x20   get: {}\n  /orders/{id}:\n    put:\n      responses:\n        200: {}\n    delete:\n\
            \x20     servers: [{url: /}]\ncomponents:\n  parameters:\n    Key: {in: header, name: Idempotency-Key}\n";
        let wanted = ["PUT /v1/orders/1 false", "DELETE /orders/1 false", "POST /v1/payments true"];
        assert_eq!(told(json), wanted);
        assert_eq!(told(yaml), wanted);
    }

    #[test]
    fn a_path_is_told_as_it_is_called() {
        for (servers, called) in [
            ("", "POST /a false"),
            ("\"basePath\": \"/api/\",", "POST /api/a false"),
            ("\"servers\": [{\"url\": \"https://x.test\"}],", "POST /a false"),
            ("\"servers\": [{\"url\": \"/v2\"}, {\"url\": \"/v1\"}],", "POST /v1/a /v2/a false"),
            (
                "\"servers\": [{\"url\": \"https://{h}/{v}\", \"variables\": {\"v\": {\"default\": \"v3\"}}}],",
                "POST /v3/a false",
            ),
        ] {
            let text = format!("{{{servers} \"paths\": {{\"/a\": {{\"post\": {{}}}}}}}}");
            assert_eq!(told(&text), [called], "{text}");
        }
    }

    #[test]
    fn what_is_no_document_is_told() {
        for (text, why) in [
            ("{", "JSON or YAML"),
            ("- a: [", "JSON or YAML"),
            ("{}", "no `paths`"),
            ("a: 1", "no `paths`"),
        ] {
            let told = read(text).unwrap_err();
            assert!(told.contains(why), "{text}: {told}");
        }
    }
}
