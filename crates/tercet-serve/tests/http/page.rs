//! The page at `/`: its files, their headers, and what they load.

use std::collections::BTreeSet;

use crate::server::{Running, shared};

/// Requests a path as a browser does; status, headers and body.
fn browse(server: &Running, path: &str) -> (u16, ureq::http::HeaderMap, String) {
    let url = format!("http://{}{path}", server.address);
    let config = ureq::Agent::config_builder().http_status_as_error(false);
    let agent: ureq::Agent = config.build().into();
    let request = agent
        .get(&url)
        .header("accept", "text/html,application/xhtml+xml,*/*;q=0.8");
    let mut response = request.call().unwrap();
    let text = response.body_mut().read_to_string().unwrap();
    (response.status().as_u16(), response.headers().clone(), text)
}

/// The texts after `before` up to the next quote.
fn quoted<'a>(text: &'a str, before: &str) -> Vec<&'a str> {
    let parts = text.split(before).skip(1);
    parts.map(|part| part.split('"').next().unwrap()).collect()
}

#[test]
fn browsers_get_a_page_and_other_clients_the_routes() {
    let server = shared();
    let (status, headers, page) = browse(&server, "/");
    assert_eq!(status, 200);
    assert_eq!(headers["content-type"], "text/html; charset=utf-8");
    assert_eq!(headers["vary"], "accept");
    assert!(page.starts_with("<!doctype html>"), "{page}");
    let routes = server.get("/").text();
    assert!(routes.contains("POST /v1/chat/completions"), "{routes}");
}

#[test]
fn every_file_of_the_page_is_served_with_a_strict_policy() {
    let server = shared();
    let (_, _, page) = browse(&server, "/");
    let mut files: Vec<String> = quoted(&page, "=\"page/")
        .into_iter()
        .map(String::from)
        .collect();
    let mut seen = BTreeSet::new();
    assert!(files.contains(&"main.js".to_string()), "{files:?}");
    while let Some(file) = files.pop() {
        if !seen.insert(file.clone()) {
            continue;
        }
        let (status, headers, text) = browse(&server, &format!("/page/{file}"));
        assert_eq!(status, 200, "{file}");
        let policy = headers["content-security-policy"].to_str().unwrap();
        assert!(policy.starts_with("default-src 'none'"), "{policy}");
        assert!(!policy.contains("unsafe"), "{policy}");
        assert_eq!(headers["x-content-type-options"], "nosniff");
        // Nothing comes from another server, and no text becomes markup.
        let is_name = |url: &&str| url.starts_with("http://www.w3.org/");
        let urls = quoted(&text, "\"http").into_iter();
        let urls: Vec<String> = urls.map(|rest| format!("http{rest}")).collect();
        assert!(
            urls.iter().all(|url| is_name(&url.as_str())),
            "{file}: {urls:?}"
        );
        for way in ["innerHTML", "insertAdjacentHTML", "document.write", "eval("] {
            assert!(!text.contains(way), "{file}: {way}");
        }
        files.extend(quoted(&text, "from \"./").into_iter().map(String::from));
    }
    assert!(seen.len() >= 9, "{seen:?}");
    // The page has no inline scripts or styles, which the policy forbids.
    assert!(
        !page.contains("<style") && !page.contains(" style="),
        "{page}"
    );
    assert!(!page.contains(" onclick="), "{page}");
    let scripts: Vec<&str> = page.split("<script").skip(1).collect();
    assert!(scripts.iter().all(|script| script.contains("></script>")));
}

#[test]
fn other_files_are_unknown() {
    let server = shared();
    for path in ["/page/none.js", "/page/..%2FCargo.toml", "/page/"] {
        let (status, _, _) = browse(&server, path);
        assert_eq!(status, 404, "{path}");
    }
}

#[test]
fn models_have_a_task_and_their_kinds_of_inputs() {
    let models = shared().get("/v1/models").json();
    let models = models["data"].as_array().unwrap();
    let of = |name: &str| models.iter().find(|m| m["id"] == name).unwrap();
    assert_eq!(of("tiny")["task"], "text-generation");
    assert_eq!(of("tiny")["input_modalities"], serde_json::json!(["text"]));
    assert_eq!(of("tiny")["loaded"], true);
    assert_eq!(of("rows")["task"], "other");
}
