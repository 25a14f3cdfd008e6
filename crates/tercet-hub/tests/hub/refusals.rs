//! Repositories that the hub does not give, and networks that are not there.

use std::net::TcpListener;

use tercet_hub::{Hub, HubError, HubSettings};

use crate::server::{Access, LocalHub, TOKEN};
use crate::{Scratch, bytes, folder, hub, is_absent, pull, settings};

fn with_token(server: &LocalHub, scratch: &Scratch, token: &str) -> Hub {
    Hub::new(HubSettings {
        token: Some(token.to_string()),
        ..settings(server, &scratch.0)
    })
}

#[track_caller]
fn says(error: &HubError, parts: &[&str]) {
    let text = error.to_string();
    for part in parts {
        assert!(text.contains(part), "no {part:?} in: {text}");
    }
    // Errors stay on one line, and never show the token.
    assert!(!text.contains('\n') && !text.contains(TOKEN), "{text}");
}

#[test]
fn missing_private_and_gated_repositories_are_told_apart() {
    let (server, scratch) = (LocalHub::start(), Scratch::new());
    let (plain, known) = (hub(&server, &scratch), with_token(&server, &scratch, TOKEN));
    for repo in ["org/gated", "org/private"] {
        server.add(repo, &[("m-Q8_0.gguf", &bytes(1, 100))]);
    }
    server.set_access("org/gated", Access::Gated);
    server.set_access("org/private", Access::Private);
    let page = format!("{}/org/gated", server.endpoint);
    let error = pull(&plain, "org/gated").unwrap_err();
    assert!(matches!(error, HubError::Gated { .. }));
    says(
        &error,
        &["org/gated is gated", &page, "set HF_TOKEN to a token"],
    );
    let error = pull(&known, "org/gated").unwrap_err();
    says(&error, &["org/gated is gated", &page, "no access yet"]);
    for repo in ["org/private", "org/missing"] {
        let error = pull(&plain, repo).unwrap_err();
        assert!(matches!(error, HubError::NoRepo { .. }));
        says(&error, &[repo, "private", "HF_TOKEN", "check the name"]);
    }
    assert!(pull(&known, "org/private").is_ok());
    let error = pull(&known, "org/missing").unwrap_err();
    says(&error, &["no repository org/missing", "may read it"]);
    let bad = with_token(&server, &scratch, "hf_bad");
    let error = pull(&bad, "org/private").unwrap_err();
    assert!(matches!(error, HubError::BadToken { .. }), "{error}");
    says(&error, &["rejects the token"]);
    for repo in ["org/gated", "org/missing"] {
        assert!(is_absent(&plain, &scratch, repo), "{repo}");
        assert!(!folder(&scratch, repo).exists(), "{repo}");
    }
}

#[test]
fn missing_revisions_files_and_quantizations_are_named() {
    let (server, scratch) = (LocalHub::start(), Scratch::new());
    let hub = hub(&server, &scratch);
    server.add(
        "org/m",
        &[("m-Q8_0.gguf", &bytes(1, 100)), ("README.md", b"")],
    );
    server.add("org/bin", &[("pytorch_model.bin", b"x")]);
    says(&pull(&hub, "org/m@v9").unwrap_err(), &["no revision v9"]);
    says(
        &pull(&hub, "org/m:Q4_0").unwrap_err(),
        &["no quantization Q4_0; it has: Q8_0"],
    );
    says(
        &pull(&hub, "org/m/x.gguf").unwrap_err(),
        &["no file x.gguf; it has: m-Q8_0.gguf"],
    );
    says(
        &pull(&hub, "org/bin").unwrap_err(),
        &["no model", "pytorch_model.bin"],
    );
    // A list that changed after it was sent: the file is gone.
    assert!(!folder(&scratch, "org/bin").exists());
}

#[test]
fn without_a_network_the_cache_still_works() {
    let (server, scratch) = (LocalHub::start(), Scratch::new());
    server.add("org/m", &[("m-Q8_0.gguf", &bytes(1, 100))]);
    let model = pull(&hub(&server, &scratch), "org/m").unwrap();
    // A port without a listener.
    let port = TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap();
    let away = Hub::new(HubSettings {
        endpoint: format!("http://{port}"),
        attempts: 2,
        ..settings(&server, &scratch.0)
    });
    let open = |name: &str| away.open(name, &Default::default(), &crate::quiet);
    assert_eq!(open("org/m").unwrap(), model);
    assert_eq!(open("m:Q8_0").unwrap(), model);
    let error = open("org/other").unwrap_err();
    assert!(matches!(error, HubError::Network { .. }), "{error}");
    says(
        &error,
        &["HF_ENDPOINT", "check the network", &port.to_string()],
    );

    let offline = Hub::new(HubSettings {
        is_offline: true,
        ..settings(&server, &scratch.0)
    });
    server.requests();
    let error = pull(&offline, "org/other").unwrap_err();
    assert!(matches!(error, HubError::Offline { .. }), "{error}");
    says(&error, &["org/other", "offline mode", "HF_HUB_OFFLINE"]);
    assert!(offline.listing(&"org/m".parse().unwrap()).is_err());
    assert!(server.requests().is_empty());
}

#[test]
fn servers_that_are_no_hubs_are_reported() {
    let (server, scratch) = (LocalHub::start(), Scratch::new());
    server.add("org/m", &[("../../evil.gguf", b"x"), ("m-Q8_0.gguf", b"y")]);
    let error = pull(&hub(&server, &scratch), "org/m").unwrap_err();
    assert!(matches!(error, HubError::Protocol { .. }), "{error}");
    says(&error, &["leaves its folder", "is HF_ENDPOINT a hub?"]);
    assert!(is_absent(&hub(&server, &scratch), &scratch, "org/m"));
}
