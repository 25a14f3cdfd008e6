//! Names of models: `ORG/NAME`, with a revision, a quantization or a file.

use std::ffi::OsStr;
use std::fmt;
use std::path::Path;

use crate::error::HubError;

/// Maximum length of each part of a repository's name, in characters.
const MAX_PART: usize = 96;
/// Prefixes that other tools and web pages put before a name.
const PREFIXES: [&str; 4] = ["hf:", "https://", "http://", ""];
/// Hosts that a name may start with.
const HOSTS: [&str; 2] = ["hf.co/", "huggingface.co/"];
/// Endings of files. An argument that ends so is a path, even if nothing is there.
const FILES: [&str; 9] = [
    "tercet",
    "onnx",
    "gguf",
    "safetensors",
    "json",
    "txt",
    "npy",
    "npz",
    "ply",
];

/// The name of a model on the hub.
///
/// | text | meaning |
/// |---|---|
/// | `ORG/NAME` | the model; of several quantizations, the one that suits the memory |
/// | `ORG/NAME:QUANT` | the GGUF model with this quantization, such as `Q8_0` |
/// | `ORG/NAME/FILE` | the model in this file |
/// | `ORG/NAME@REVISION...` | the same in a branch, a tag or a commit |
///
/// ```
/// use tercet_hub::HubName;
/// let name: HubName = "org/model-GGUF@v2:Q4_K_M".parse()?;
/// assert_eq!((name.repo(), name.revision()), ("org/model-GGUF", "v2"));
/// assert_eq!(name.quant(), Some("Q4_K_M"));
/// assert!("../etc/passwd".parse::<HubName>().is_err());
/// # Ok::<(), tercet_hub::HubError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HubName {
    repo: String,
    revision: Option<String>,
    quant: Option<String>,
    file: Option<String>,
}

impl HubName {
    /// The name in an argument that could also be a path: none if something exists there, if its first
    /// folder exists, or if it ends as a file does. With `hf:` in front it is never a path.
    ///
    /// ```
    /// use tercet_hub::HubName;
    /// assert!(HubName::from_argument("org/model").is_some());
    /// assert!(HubName::from_argument("graphs/add.tercet").is_none());
    /// assert!(HubName::from_argument("/models/org").is_none());
    /// ```
    pub fn from_argument(text: &str) -> Option<HubName> {
        let name: HubName = text.parse().ok()?;
        if text.starts_with("hf:") {
            return Some(name);
        }
        let first = text.split('/').next().unwrap_or_default();
        let end = Path::new(&name.repo).extension().and_then(OsStr::to_str);
        let is_file = end.is_some_and(|end| FILES.contains(&&*end.to_ascii_lowercase()));
        (!is_file && !Path::new(first).is_dir() && !Path::new(text).exists()).then_some(name)
    }

    /// The repository, `ORG/NAME`.
    pub fn repo(&self) -> &str {
        &self.repo
    }

    /// The revision; `main` if the name has none.
    pub fn revision(&self) -> &str {
        self.revision.as_deref().unwrap_or("main")
    }

    /// The requested quantization.
    pub fn quant(&self) -> Option<&str> {
        self.quant.as_deref()
    }

    /// The path of the requested file in the repository.
    pub fn file(&self) -> Option<&str> {
        self.file.as_deref()
    }

    /// The same model in another revision.
    ///
    /// # Errors
    /// [`HubError::BadName`] if the text is not the name of a revision.
    pub fn with_revision(mut self, revision: &str) -> Result<HubName, HubError> {
        if !is_part(revision) {
            return Err(bad(revision, "a revision has letters, digits and -_. only"));
        }
        self.revision = Some(revision.to_string());
        Ok(self)
    }

    /// The same model in a file of the repository.
    ///
    /// # Errors
    /// [`HubError::BadName`] if the text is not a relative path.
    pub fn with_file(mut self, file: &str) -> Result<HubName, HubError> {
        if !is_relative(file) {
            return Err(bad(file, "a file is a relative path inside the repository"));
        }
        self.file = Some(file.to_string());
        Ok(self)
    }

    /// The name of a repository of the cache, without a selection.
    pub(crate) fn from_repo(repo: &str) -> HubName {
        HubName {
            repo: repo.to_string(),
            revision: None,
            quant: None,
            file: None,
        }
    }

    /// The name of a repository of the cache with the selection of `self`.
    pub(crate) fn in_repo(&self, repo: &str) -> HubName {
        HubName {
            repo: repo.to_string(),
            ..self.clone()
        }
    }

    /// Parses a short name, `NAME[@REVISION][:QUANT]`: a repository without its organization. The
    /// repository of the result has no `/`.
    ///
    /// # Errors
    /// [`HubError::BadName`].
    pub(crate) fn short(text: &str) -> Result<HubName, HubError> {
        let rest = text.strip_prefix("hf:").unwrap_or(text);
        let (rest, quant) = split(rest, ':');
        let (name, revision) = split(rest, '@');
        checked(text, name.to_string(), revision, quant, None)
    }
}

impl std::str::FromStr for HubName {
    type Err = HubError;

    fn from_str(text: &str) -> Result<HubName, HubError> {
        let mut rest = text;
        for prefix in PREFIXES {
            let Some(inside) = text.strip_prefix(prefix) else {
                continue;
            };
            let hosted = HOSTS.iter().find_map(|host| inside.strip_prefix(host));
            match (hosted, prefix) {
                (Some(inside), _) => rest = inside,
                (None, "hf:") => rest = inside,
                (None, _) => continue,
            }
            break;
        }
        let expected = "expected ORG/NAME, ORG/NAME:QUANT or ORG/NAME/FILE";
        let (org, rest) = rest.split_once('/').ok_or_else(|| bad(text, expected))?;
        let end = rest.find(['/', ':', '@']).unwrap_or(rest.len());
        let (name, rest) = rest.split_at(end);
        let repo = format!("{org}/{name}");
        let (rest, revision) = match rest.strip_prefix('@') {
            None => (rest, None),
            Some(rest) => {
                let end = rest.find(['/', ':']).unwrap_or(rest.len());
                let (revision, rest) = rest.split_at(end);
                (rest, Some(revision))
            }
        };
        let (quant, file) = match (rest.strip_prefix(':'), rest.strip_prefix('/')) {
            (Some(quant), _) => (Some(quant), None),
            (None, Some(file)) => (None, Some(file)),
            (None, None) => (None, None),
        };
        // The address of a page of the hub: `ORG/NAME/blob/main/FILE`.
        let mut revision = revision;
        let mut file = file.filter(|file| !file.is_empty());
        if let Some((kind, inside)) = file.and_then(|file| file.split_once('/'))
            && matches!(kind, "blob" | "resolve" | "tree")
            && text.contains("://")
        {
            let (of_page, path) = inside.split_once('/').unwrap_or((inside, ""));
            revision = Some(of_page);
            file = Some(path).filter(|path| !path.is_empty());
        }
        checked(text, repo, revision, quant, file)
    }
}

impl fmt::Display for HubName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.repo)?;
        if let Some(revision) = &self.revision {
            write!(f, "@{revision}")?;
        }
        if let Some(quant) = &self.quant {
            write!(f, ":{quant}")?;
        }
        match &self.file {
            Some(file) => write!(f, "/{file}"),
            None => Ok(()),
        }
    }
}

fn split(text: &str, at: char) -> (&str, Option<&str>) {
    match text.split_once(at) {
        Some((head, tail)) => (head, Some(tail)),
        None => (text, None),
    }
}

fn checked(
    text: &str,
    repo: String,
    revision: Option<&str>,
    quant: Option<&str>,
    file: Option<&str>,
) -> Result<HubName, HubError> {
    if !repo.split('/').all(is_part) {
        let why = "the parts of a name have letters, digits and -_. only, at most 96 characters";
        return Err(bad(text, why));
    }
    if !revision.is_none_or(is_part) {
        return Err(bad(text, "a revision has letters, digits and -_. only"));
    }
    // `latest` is the default of tools that name quantizations by tags.
    let quant = quant.filter(|quant| !quant.eq_ignore_ascii_case("latest"));
    if !quant.is_none_or(is_part) {
        return Err(bad(
            text,
            "a quantization has a name such as Q4_K_M after the colon",
        ));
    }
    if !file.is_none_or(is_relative) {
        return Err(bad(text, "a file is a relative path inside the repository"));
    }
    Ok(HubName {
        repo,
        revision: revision.map(str::to_string),
        quant: quant.map(str::to_string),
        file: file.map(str::to_string),
    })
}

fn bad(text: &str, reason: &str) -> HubError {
    HubError::BadName {
        name: text.chars().take(200).collect(),
        reason: reason.to_string(),
    }
}

/// Whether a text can be an organization, the name of a repository, a revision or a quantization.
pub(crate) fn is_part(text: &str) -> bool {
    let known = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    !text.is_empty()
        && text.len() <= MAX_PART
        && text.chars().all(known)
        && !text.starts_with(['.', '-'])
        && !text.contains("..")
        && !text.contains("--")
}

/// Whether a text is a path that stays inside its folder on every system.
pub(crate) fn is_relative(path: &str) -> bool {
    let plain = |part: &str| {
        let acts =
            |c: char| c.is_control() || matches!(c, '\\' | ':' | '*' | '?' | '"' | '<' | '>' | '|');
        !part.is_empty() && part != "." && part != ".." && !part.contains(acts)
    };
    path.len() <= 1024 && path.split('/').all(plain)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parts(text: &str) -> (String, String, Option<String>, Option<String>) {
        let name: HubName = text.parse().unwrap();
        let revision = name.revision().to_string();
        (name.repo, revision, name.quant, name.file)
    }

    #[test]
    fn names_have_a_repository_a_revision_and_a_selection() {
        let of = |repo: &str, revision: &str, quant: Option<&str>, file: Option<&str>| {
            let owned = |text: Option<&str>| text.map(str::to_string);
            (repo.into(), revision.into(), owned(quant), owned(file))
        };
        let plain = of("a/b.c-GGUF", "main", None, None);
        for text in [
            "a/b.c-GGUF",
            "hf:a/b.c-GGUF",
            "a/b.c-GGUF:latest",
            "hf.co/a/b.c-GGUF",
        ] {
            assert_eq!(parts(text), plain, "{text}");
        }
        assert_eq!(parts("a/b:q8_0"), of("a/b", "main", Some("q8_0"), None));
        assert_eq!(
            parts("hf.co/a/b:UD-Q4_K_XL"),
            of("a/b", "main", Some("UD-Q4_K_XL"), None)
        );
        assert_eq!(
            parts("a/b@v1/x/y.gguf"),
            of("a/b", "v1", None, Some("x/y.gguf"))
        );
        let page = format!("https://{}a/b/blob/main/y.gguf", HOSTS[1]);
        assert_eq!(parts(&page), of("a/b", "main", None, Some("y.gguf")));
        for text in ["a/b", "a/b@v1:Q8_0", "a/b@v1/x/y.gguf"] {
            assert_eq!(text.parse::<HubName>().unwrap().to_string(), text);
        }
        assert_eq!(HubName::short("b:Q8_0").unwrap().repo(), "b");
    }

    #[test]
    fn other_texts_are_no_names() {
        for text in [
            "",
            "a",
            "/",
            "a/",
            "/b",
            "../b",
            "a/..",
            "a/b/../c",
            "a/b//c",
            "a/b:",
            "a/b:x/y",
            "a/b@",
            "a/b@../x",
            "a b/c",
            "a/b\\c",
            "a--b/c",
            "a/b/c:d",
            "a/b\u{7}",
            "https://other/a/b",
            "a/b/C:\\x",
        ] {
            assert!(
                matches!(text.parse::<HubName>(), Err(HubError::BadName { .. })),
                "{text}"
            );
        }
        let long = format!("a/{}", "b".repeat(97));
        assert!(long.parse::<HubName>().is_err());
    }
}
