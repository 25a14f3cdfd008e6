//! The manifests of the crates that a registry gets, in the order of their publication.

use serde::Deserialize;

use crate::error::XtaskError;
use crate::process;

/// Fields of a manifest, as `cargo metadata` prints them.
#[derive(Deserialize)]
pub(super) struct CrateManifest {
    pub(super) name: String,
    pub(super) version: String,
    /// The registries that get the crate: `None` for all.
    publish: Option<Vec<String>>,
    description: Option<String>,
    license: Option<String>,
    readme: Option<String>,
    rust_version: Option<String>,
    keywords: Vec<String>,
    categories: Vec<String>,
    metadata: serde_json::Value,
    dependencies: Vec<CrateRequirement>,
}

#[derive(Deserialize)]
struct CrateRequirement {
    name: String,
    req: String,
    /// `None` for normal dependencies.
    kind: Option<String>,
    /// The folder of a crate of the workspace.
    path: Option<String>,
}

#[derive(Deserialize)]
struct PublishedCrates {
    packages: Vec<CrateManifest>,
}

/// The crates without `publish = false`. Each comes after those that its package depends on.
pub(super) fn published() -> Result<Vec<CrateManifest>, XtaskError> {
    let mut cargo = process::cargo();
    cargo.args(["metadata", "--no-deps", "--locked", "--format-version", "1"]);
    let printed = process::output(&mut cargo)?;
    let all: PublishedCrates =
        serde_json::from_slice(&printed).map_err(XtaskError::CargoMessage)?;
    let is_published = |manifest: &CrateManifest| manifest.publish.is_none();
    in_order(all.packages.into_iter().filter(is_published).collect())
}

/// Sorts crates by what they depend on, then by name.
fn in_order(mut open: Vec<CrateManifest>) -> Result<Vec<CrateManifest>, XtaskError> {
    open.sort_by(|a, b| a.name.cmp(&b.name));
    let mut sorted = Vec::new();
    while !open.is_empty() {
        let is_ready = |manifest: &CrateManifest| {
            let mut others = open.iter().filter(|other| other.name != manifest.name);
            others.all(|other| !manifest.needs(&other.name))
        };
        match open.iter().position(is_ready) {
            Some(at) => sorted.push(open.remove(at)),
            None => {
                let names: Vec<String> = open.into_iter().map(|manifest| manifest.name).collect();
                let problem = format!("packages depend on each other: {}", names.join(", "));
                return Err(XtaskError::Packages {
                    problems: vec![problem],
                });
            }
        }
    }
    Ok(sorted)
}

impl CrateManifest {
    /// Whether the package depends on a crate of the workspace. A dependency without a version is not in the package.
    fn needs(&self, name: &str) -> bool {
        let mut own = self.dependencies.iter().filter(|used| used.is_packed());
        own.any(|used| used.name == name)
    }

    /// Missing fields, and siblings in another version or without a package, as sentences.
    pub(super) fn problems(&self, published: &[CrateManifest]) -> Vec<String> {
        let is_missing = [
            ("description", self.description.is_none()),
            ("license", self.license.is_none()),
            ("readme", self.readme.is_none()),
            ("rust-version", self.rust_version.is_none()),
            ("keywords", self.keywords.is_empty()),
            ("categories", self.categories.is_empty()),
            ("metadata.docs.rs", self.metadata["docs"]["rs"].is_null()),
        ];
        let missing = is_missing.iter().filter(|(_, is_missing)| *is_missing);
        let fields = missing.map(|(field, _)| format!("{} has no `{field}`", self.name));
        let own = self.dependencies.iter().filter(|used| used.path.is_some());
        let own = own.filter(|used| used.kind.as_deref() != Some("dev") || used.is_packed());
        let siblings = own.filter_map(|used| {
            let CrateRequirement { name, req, .. } = used;
            let expected = format!("^{}", self.version);
            match published.iter().any(|other| other.name == *name) {
                false => Some(format!(
                    "{} requires {name}, which is not published",
                    self.name
                )),
                true if *req == expected => None,
                true => Some(format!(
                    "{} requires {name} {req}, expected {expected}",
                    self.name
                )),
            }
        });
        fields.chain(siblings).collect()
    }
}

impl CrateRequirement {
    /// Whether the package has the dependency: dependencies by path alone are left out.
    fn is_packed(&self) -> bool {
        self.path.is_some() && self.req != "*"
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn manifest(name: &str, dependencies: &str) -> CrateManifest {
        let text = format!(
            r#"{{"name": "{name}", "version": "0.1.0", "publish": null, "description": "d", "license": "MIT",
            "readme": "README.md", "rust_version": "1.88", "keywords": ["k"], "categories": ["c"],
            "metadata": {{"docs": {{"rs": {{}}}}}}, "dependencies": [{dependencies}]}}"#
        );
        serde_json::from_str(&text).unwrap()
    }

    const ON_B: &str = r#"{"name": "b", "req": "^0.1.0", "kind": null, "path": "/b"}"#;
    const TESTS_WITH_A: &str = r#"{"name": "a", "req": "*", "kind": "dev", "path": "/a"}"#;

    #[test]
    fn crates_come_after_those_that_they_depend_on() {
        let names = |crates: Vec<CrateManifest>| -> Vec<String> {
            let sorted = in_order(crates).unwrap();
            sorted.into_iter().map(|manifest| manifest.name).collect()
        };
        assert_eq!(
            names(vec![manifest("a", ON_B), manifest("b", "")]),
            ["b", "a"]
        );
        // A development dependency without a version is not in the package, so that this is no circle.
        let crates = vec![manifest("a", ON_B), manifest("b", TESTS_WITH_A)];
        assert_eq!(names(crates), ["b", "a"]);
        let circle = r#"{"name": "a", "req": "^0.1.0", "kind": "dev", "path": "/a"}"#;
        let error = in_order(vec![manifest("a", ON_B), manifest("b", circle)])
            .err()
            .unwrap();
        assert!(
            error.to_string().contains("depend on each other: a, b"),
            "{error}"
        );
    }

    #[test]
    fn missing_fields_and_other_versions_are_named() {
        let problems = |manifest: CrateManifest| {
            let published = [self::manifest("a", ""), self::manifest("b", "")];
            manifest.problems(&published)
        };
        assert_eq!(problems(manifest("a", ON_B)), [""; 0]);
        assert_eq!(problems(manifest("b", TESTS_WITH_A)), [""; 0]);
        for requirement in ["^0.0.9", "*"] {
            let other = ON_B.replace("^0.1.0", requirement);
            let expected = format!("a requires b {requirement}, expected ^0.1.0");
            assert_eq!(problems(manifest("a", &other)), [expected]);
        }
        let private = ON_B.replace("\"b\"", "\"tests\"");
        assert_eq!(
            problems(manifest("a", &private)),
            ["a requires tests, which is not published"]
        );
        let mut bare = manifest("a", "");
        (bare.description, bare.keywords) = (None, Vec::new());
        bare.metadata = serde_json::Value::Null;
        let expected = [
            "a has no `description`",
            "a has no `keywords`",
            "a has no `metadata.docs.rs`",
        ];
        assert_eq!(problems(bare), expected);
    }

    #[test]
    fn the_crates_of_the_workspace_can_be_published() {
        let crates = published().unwrap();
        let at = |name: &str| {
            crates
                .iter()
                .position(|manifest| manifest.name == name)
                .unwrap()
        };
        assert!(at("tercet-ir") < at("tercet") && at("tercet") < at("tercet-models"));
        assert!(at("tercet-models") < at("tercet-cli"));
        let problems: Vec<String> = crates
            .iter()
            .flat_map(|manifest| manifest.problems(&crates))
            .collect();
        assert_eq!(problems, [""; 0]);
    }
}
