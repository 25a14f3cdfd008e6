//! The files of a repository, as the hub lists them.

use serde::Deserialize;

use crate::error::HubError;
use crate::name::is_relative;

/// The digest of a file's contents. It is the name of the file in the cache.
///
/// ```
/// use tercet_hub::FileDigest;
/// let digest = FileDigest::from_hex(&"0f".repeat(32));
/// assert!(matches!(digest, Some(FileDigest::Sha256(_))));
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum FileDigest {
    /// SHA-256 of the contents, 64 hexadecimal digits: large files (LFS).
    Sha256(String),
    /// SHA-1 of the git blob, 40 hexadecimal digits: small files.
    GitSha1(String),
}

impl FileDigest {
    /// The digest with these hexadecimal digits; its length tells the kind.
    pub fn from_hex(hex: &str) -> Option<FileDigest> {
        if !hex.bytes().all(|b| b.is_ascii_hexdigit()) {
            return None;
        }
        let hex = hex.to_ascii_lowercase();
        match hex.len() {
            64 => Some(FileDigest::Sha256(hex)),
            40 => Some(FileDigest::GitSha1(hex)),
            _ => None,
        }
    }

    /// The hexadecimal digits.
    pub fn hex(&self) -> &str {
        match self {
            FileDigest::Sha256(hex) | FileDigest::GitSha1(hex) => hex,
        }
    }

    /// The digest in a header: `"HEX"`, or `W/"HEX"`.
    pub(crate) fn from_etag(etag: &str) -> Option<FileDigest> {
        let etag = etag.trim();
        FileDigest::from_hex(etag.strip_prefix("W/").unwrap_or(etag).trim_matches('"'))
    }
}

/// A file of a repository.
///
/// ```
/// let file = tercet_hub::RepoFile::new("model.gguf");
/// assert_eq!(file.bytes, None);
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RepoFile {
    /// Path in the repository, with `/`.
    pub path: String,
    /// Size in bytes, if the server tells it.
    pub bytes: Option<u64>,
    /// Digest of the contents, if the server tells it.
    pub digest: Option<FileDigest>,
}

impl RepoFile {
    /// A file of unknown size.
    pub fn new(path: impl Into<String>) -> RepoFile {
        RepoFile {
            path: path.into(),
            bytes: None,
            digest: None,
        }
    }
}

/// The files of a commit of a repository.
///
/// ```no_run
/// use tercet_hub::{Hub, HubSettings};
/// let hub = Hub::new(HubSettings::from_env()?);
/// for file in hub.listing(&"org/model".parse()?)?.files {
///     println!("{} {:?}", file.path, file.bytes);
/// }
/// # Ok::<(), tercet_hub::HubError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RepoListing {
    /// The repository, `ORG/NAME`.
    pub repo: String,
    /// The commit, 40 hexadecimal digits.
    pub commit: String,
    /// The files, in the order of the server.
    pub files: Vec<RepoFile>,
}

#[derive(Deserialize)]
struct ApiModel {
    sha: Option<String>,
    #[serde(default)]
    siblings: Vec<ApiFile>,
}

#[derive(Deserialize)]
struct ApiFile {
    rfilename: String,
    size: Option<u64>,
    #[serde(rename = "blobId")]
    blob_id: Option<String>,
    lfs: Option<ApiLfs>,
}

#[derive(Deserialize)]
struct ApiLfs {
    sha256: Option<String>,
    size: Option<u64>,
}

impl RepoListing {
    /// Reads the answer of `api/models/ORG/NAME/revision/REVISION?blobs=true` at `url`.
    pub(crate) fn from_json(repo: &str, url: &str, json: &[u8]) -> Result<RepoListing, HubError> {
        let bad = |reason: String| HubError::Protocol {
            url: url.to_string(),
            reason,
        };
        let model: ApiModel =
            serde_json::from_slice(json).map_err(|e| bad(format!("no list of files: {e}")))?;
        let sha = model.sha.unwrap_or_default();
        let Some(FileDigest::GitSha1(commit)) = FileDigest::from_hex(&sha) else {
            return Err(bad(
                "the answer has no commit of 40 hexadecimal digits".into()
            ));
        };
        let file = |file: ApiFile| {
            if !is_relative(&file.rfilename) {
                let path: String = file.rfilename.chars().take(80).collect();
                let path = path.escape_debug();
                return Err(bad(format!("the file name `{path}` leaves its folder")));
            }
            let of_lfs = file.lfs.as_ref();
            let (hex, size) = match of_lfs {
                Some(lfs) => (lfs.sha256.as_deref(), lfs.size.or(file.size)),
                None => (file.blob_id.as_deref(), file.size),
            };
            let digest = hex.and_then(FileDigest::from_hex);
            // A pointer file of LFS has a git digest, which is not that of the contents.
            let digest =
                digest.filter(|digest| matches!(digest, FileDigest::Sha256(_)) == of_lfs.is_some());
            Ok(RepoFile {
                path: file.rfilename,
                bytes: size,
                digest,
            })
        };
        let files = model.siblings.into_iter().map(file);
        Ok(RepoListing {
            repo: repo.to_string(),
            commit,
            files: files.collect::<Result<_, _>>()?,
        })
    }

    /// The end of an error message with the files that resemble `path`, or that exist at all.
    pub(crate) fn near(&self, path: &str) -> String {
        let end = path.rsplit_once('.').map_or("", |(_, end)| end);
        let files = self.files.iter().map(|file| file.path.as_str());
        let alike: Vec<&str> = files.filter(|path| path.ends_with(end)).collect();
        listed("; it has: ", &alike)
    }
}

/// Names after a text, at most twelve of them; nothing if there are none.
pub(crate) fn listed(before: &str, names: &[&str]) -> String {
    if names.is_empty() {
        return String::new();
    }
    let shown = names.iter().take(12).copied().collect::<Vec<_>>();
    let more = match names.len() > 12 {
        true => format!(", and {} more", names.len() - 12),
        false => String::new(),
    };
    format!("{before}{}{more}", shown.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(json: &str) -> Result<RepoListing, HubError> {
        RepoListing::from_json("a/b", "http://x", json.as_bytes())
    }

    #[test]
    fn a_listing_has_sizes_and_digests_of_the_contents() {
        let (sha, lfs, git) = ("a".repeat(40), "b".repeat(64), "c".repeat(40));
        let json = format!(
            r#"{{"sha":"{sha}","other":1,"siblings":[
            {{"rfilename":"m.gguf","size":9,"blobId":"{git}","lfs":{{"sha256":"{lfs}","size":9,"pointerSize":1}}}},
            {{"rfilename":"x/config.json","size":2,"blobId":"{git}"}},
            {{"rfilename":"plain"}}]}}"#
        );
        let listing = read(&json).unwrap();
        assert_eq!(listing.commit, sha);
        let digests: Vec<_> = listing
            .files
            .iter()
            .map(|file| file.digest.clone())
            .collect();
        let expected = [
            Some(FileDigest::Sha256(lfs)),
            Some(FileDigest::GitSha1(git)),
            None,
        ];
        assert_eq!(digests, expected);
        assert_eq!(listing.files[0].bytes, Some(9));
    }

    #[test]
    fn listings_that_lie_are_refused() {
        let sha = "a".repeat(40);
        for path in ["../x", "/etc/passwd", "a//b", "a/../../b", "C:\\\\x", ""] {
            let json = format!(r#"{{"sha":"{sha}","siblings":[{{"rfilename":"{path}"}}]}}"#);
            assert!(
                matches!(read(&json), Err(HubError::Protocol { .. })),
                "{path}"
            );
        }
        for json in [
            "",
            "[]",
            "<html>",
            "{}",
            r#"{"sha":"../../x"}"#,
            r#"{"sha":"main"}"#,
        ] {
            assert!(
                matches!(read(json), Err(HubError::Protocol { .. })),
                "{json}"
            );
        }
    }
}
