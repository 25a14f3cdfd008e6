//! The bill of materials: a CycloneDX document with all crates of the program, their digests, licenses and edges.

use std::path::PathBuf;

use serde_json::{Value, json};

use super::dependencies::LinkedCrate;
use super::{DistInput, SUMMARY, VERSION};
use crate::error::XtaskError;
use crate::fetch::sha256;

const SPEC: &str = "1.5";

/// Writes the document.
pub(super) fn write(crates: &[LinkedCrate], input: &DistInput) -> Result<PathBuf, XtaskError> {
    let digest = sha256(&input.binary).map_err(crate::error::file("read", &input.binary))?;
    let document = document(crates, &digest, input.time, &input.target);
    let path = input.out.join(format!("{}.cdx.json", input.stem()));
    super::write(&path, format!("{document:#}\n").as_bytes())?;
    Ok(path)
}

fn reference(name: &str, version: &str) -> String {
    format!("pkg:cargo/{name}@{version}")
}

/// The document for a program with this SHA-256.
fn document(crates: &[LinkedCrate], digest: &str, time: u64, target: &str) -> Value {
    let is_command = |linked: &&LinkedCrate| linked.name == "tercet-cli";
    let components = crates
        .iter()
        .filter(|linked| !is_command(linked))
        .map(component);
    let dependencies = crates.iter().map(|linked| {
        let uses = linked
            .uses
            .iter()
            .map(|(name, version)| reference(name, version));
        json!({
            "ref": reference(&linked.name, &linked.version),
            "dependsOn": uses.collect::<Vec<_>>(),
        })
    });
    json!({
        "bomFormat": "CycloneDX",
        "specVersion": SPEC,
        "version": 1,
        "metadata": {
            "timestamp": timestamp(time),
            "component": {
                "type": "application",
                "bom-ref": reference("tercet-cli", VERSION),
                "name": "tercet",
                "version": VERSION,
                "description": SUMMARY,
                "hashes": [{ "alg": "SHA-256", "content": digest }],
                "licenses": [{ "expression": "MIT OR Apache-2.0" }],
                "properties": [{ "name": "target", "value": target }],
            },
        },
        "components": components.collect::<Vec<_>>(),
        "dependencies": dependencies.collect::<Vec<_>>(),
    })
}

fn component(linked: &LinkedCrate) -> Value {
    let url = reference(&linked.name, &linked.version);
    let mut component = json!({
        "type": "library",
        "bom-ref": url,
        "name": linked.name,
        "version": linked.version,
        "purl": url,
        "scope": "required",
    });
    if let Some(text) = &linked.description {
        component["description"] = json!(text.split_whitespace().collect::<Vec<_>>().join(" "));
    }
    if let Some(license) = &linked.license {
        component["licenses"] = json!([{ "expression": license }]);
    }
    if let Some(checksum) = &linked.checksum {
        component["hashes"] = json!([{ "alg": "SHA-256", "content": checksum }]);
    }
    if let Some(repository) = &linked.repository {
        component["externalReferences"] = json!([{ "type": "vcs", "url": repository }]);
    }
    component
}

/// The time in the form `2026-11-29T18:00:00Z`.
pub(super) fn timestamp(seconds: u64) -> String {
    let (mut days, rest) = (seconds / 86_400, seconds % 86_400);
    let mut year = 1970;
    let is_leap = |year: u64| {
        year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400))
    };
    while days >= 365 + u64::from(is_leap(year)) {
        days -= 365 + u64::from(is_leap(year));
        year += 1;
    }
    let february = 28 + u64::from(is_leap(year));
    let mut month = 1;
    for length in [31, february, 31, 30, 31, 30, 31, 31, 30, 31, 30] {
        if days < length {
            break;
        }
        days -= length;
        month += 1;
    }
    let (hour, minute, second) = (rest / 3600, rest / 60 % 60, rest % 60);
    format!(
        "{year:04}-{month:02}-{:02}T{hour:02}:{minute:02}:{second:02}Z",
        days + 1
    )
}

#[cfg(test)]
mod tests {
    use super::super::dependencies;
    use super::*;

    #[test]
    fn times_are_those_of_the_calendar() {
        // Values of `date -u -d @SECONDS`.
        for (seconds, text) in [
            (0, "1970-01-01T00:00:00Z"),
            (951_782_400, "2000-02-29T00:00:00Z"),
            (1_700_000_000, "2023-11-14T22:13:20Z"),
            (1_735_689_599, "2024-12-31T23:59:59Z"),
            (4_107_542_400, "2100-03-01T00:00:00Z"),
        ] {
            assert_eq!(timestamp(seconds), text);
        }
    }

    #[test]
    fn every_edge_leads_to_a_component() {
        let crates = dependencies::read(dependencies::COMMAND, "x86_64-unknown-linux-gnu").unwrap();
        let document = document(&crates, "00", 0, "x86_64-unknown-linux-gnu");
        let text = |value: &Value| value.as_str().unwrap().to_string();
        let components = document["components"].as_array().unwrap();
        let mut known: Vec<String> = components.iter().map(|c| text(&c["bom-ref"])).collect();
        assert_eq!(known.len() + 1, crates.len());
        known.push(text(&document["metadata"]["component"]["bom-ref"]));
        let edges = document["dependencies"].as_array().unwrap();
        assert_eq!(edges.len(), known.len());
        for edge in edges {
            let ends = edge["dependsOn"]
                .as_array()
                .unwrap()
                .iter()
                .chain([&edge["ref"]]);
            for end in ends {
                assert!(known.contains(&text(end)), "{end}");
            }
        }
    }
}
