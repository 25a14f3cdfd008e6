//! Settings: the endpoint, the token, the folder of the cache, offline mode.

use std::ffi::OsString;
use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::error::HubError;

/// The default of `HF_ENDPOINT`.
pub const DEFAULT_ENDPOINT: &str = "https://huggingface.co";
/// Maximum size of the file of a token, in bytes.
const MAX_TOKEN_BYTES: u64 = 4096;

/// Settings of [`Hub`](crate::Hub).
///
/// ```
/// use tercet_hub::HubSettings;
/// let settings = HubSettings { is_offline: true, ..HubSettings::new("/tmp/hub") };
/// assert_eq!(settings.endpoint, tercet_hub::DEFAULT_ENDPOINT);
/// ```
#[derive(Clone, PartialEq, Eq)]
pub struct HubSettings {
    /// Address of the hub or of a mirror, without `/` at its end.
    pub endpoint: String,
    /// Token that the hub accepts.
    pub token: Option<String>,
    /// Folder of the cache, which has a folder `models--ORG--NAME` per model.
    pub cache: PathBuf,
    /// Whether the network must not be used.
    pub is_offline: bool,
    /// Maximum number of parallel requests for one file.
    pub connections: usize,
    /// Bytes that one request loads; at most twice `connections` of them are held in memory.
    pub chunk_bytes: u64,
    /// Maximum time to wait when a server limits the rate of requests.
    pub max_wait: Duration,
    /// Time after which a connection without data is closed.
    pub stall: Duration,
    /// Attempts without progress after which a download fails.
    pub attempts: u32,
    /// Additional root certificates in PEM, for example those of a proxy.
    pub root_certificates: Option<PathBuf>,
}

impl HubSettings {
    /// The defaults, with this folder of the cache.
    pub fn new(cache: impl Into<PathBuf>) -> HubSettings {
        HubSettings {
            endpoint: DEFAULT_ENDPOINT.to_string(),
            token: None,
            cache: cache.into(),
            is_offline: false,
            connections: 8,
            chunk_bytes: 2 << 20,
            max_wait: Duration::from_secs(120),
            stall: Duration::from_secs(30),
            attempts: 6,
            root_certificates: None,
        }
    }

    /// The settings of the environment, which other tools of the hub use too: `HF_ENDPOINT`,
    /// `HF_TOKEN` or the file `token` of `HF_HOME`, `HF_HUB_CACHE`, `HF_HUB_OFFLINE`,
    /// `SSL_CERT_FILE`.
    ///
    /// # Errors
    /// [`HubError::NoCache`] if no variable selects a folder, and [`HubError::BadSetting`].
    pub fn from_env() -> Result<HubSettings, HubError> {
        HubSettings::from_vars(&|name| std::env::var_os(name).filter(|v| !v.is_empty()))
    }

    fn from_vars(var: &dyn Fn(&str) -> Option<OsString>) -> Result<HubSettings, HubError> {
        let home = var("HOME")
            .or_else(|| var("USERPROFILE"))
            .map(PathBuf::from);
        let path = |name: &str| {
            let path = PathBuf::from(var(name)?);
            // The tools expand `~` themselves.
            match (path.strip_prefix("~"), &home) {
                (Ok(rest), Some(home)) => Some(home.join(rest)),
                _ => Some(path),
            }
        };
        let cache = || path("XDG_CACHE_HOME").or_else(|| Some(home.as_ref()?.join(".cache")));
        let of_tools = path("HF_HOME").or_else(|| Some(cache()?.join("huggingface")));
        let hub = path("HF_HUB_CACHE")
            .or_else(|| path("HUGGINGFACE_HUB_CACHE"))
            .or_else(|| Some(of_tools.as_ref()?.join("hub")))
            .ok_or(HubError::NoCache)?;
        let text = |name: &'static str| match var(name) {
            None => Ok(None),
            Some(value) => match value.to_str().map(str::trim) {
                Some("") => Ok(None),
                Some(text) if text.chars().all(|c| c.is_ascii_graphic()) => {
                    Ok(Some(text.to_string()))
                }
                _ => Err(HubError::BadSetting {
                    variable: name,
                    value: "(not shown)".to_string(),
                    reason: "it has spaces, control characters or letters outside of ASCII"
                        .to_string(),
                }),
            },
        };
        let mut settings = HubSettings::new(hub);
        if let Some(endpoint) = text("HF_ENDPOINT")? {
            settings.endpoint = checked_endpoint(&endpoint)?;
        }
        settings.token = match text("HF_TOKEN")? {
            Some(token) => Some(token),
            None => match text("HUGGING_FACE_HUB_TOKEN")? {
                Some(token) => Some(token),
                None => {
                    let file = path("HF_TOKEN_PATH").or_else(|| Some(of_tools?.join("token")));
                    file.and_then(|file| token_of_file(&file))
                }
            },
        };
        let is_on = |name| var(name).is_some_and(|value| is_true(&value.to_string_lossy()));
        settings.is_offline = is_on("HF_HUB_OFFLINE") || is_on("TRANSFORMERS_OFFLINE");
        settings.root_certificates = path("SSL_CERT_FILE");
        Ok(settings)
    }
}

/// The token stays out of logs.
impl fmt::Debug for HubSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HubSettings")
            .field("endpoint", &self.endpoint)
            .field("has_token", &self.token.is_some())
            .field("cache", &self.cache)
            .field("is_offline", &self.is_offline)
            .finish_non_exhaustive()
    }
}

fn is_true(value: &str) -> bool {
    ["1", "on", "yes", "true"].contains(&value.trim().to_ascii_lowercase().as_str())
}

fn checked_endpoint(endpoint: &str) -> Result<String, HubError> {
    let endpoint = endpoint.trim_end_matches('/');
    let host = ["https://", "http://"]
        .iter()
        .find_map(|scheme| endpoint.strip_prefix(scheme));
    match host {
        Some(host) if !host.is_empty() && !host.contains(['@', '?', '#']) => {
            Ok(endpoint.to_string())
        }
        _ => Err(HubError::BadSetting {
            variable: "HF_ENDPOINT",
            value: endpoint.to_string(),
            reason: "expected an address such as https://HOST, without user, query and fragment"
                .to_string(),
        }),
    }
}

/// The token in a file. A file that cannot be read counts as none: most models need no token.
fn token_of_file(file: &Path) -> Option<String> {
    let size = std::fs::metadata(file).ok()?.len();
    if size > MAX_TOKEN_BYTES {
        return None;
    }
    let text = std::fs::read_to_string(file).ok()?;
    let token = text.trim();
    let plain = !token.is_empty() && token.chars().all(|c| c.is_ascii_graphic());
    plain.then(|| token.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(vars: &[(&str, &str)]) -> Result<HubSettings, HubError> {
        HubSettings::from_vars(&|name| {
            let mut vars = vars.iter();
            let found = vars.find(|(own, _)| *own == name)?;
            Some(OsString::from(found.1)).filter(|v| !v.is_empty())
        })
    }

    #[test]
    fn the_environment_selects_cache_endpoint_token_and_offline_mode() {
        let home = ("HOME", "/missing-home");
        let cache = |vars: &[(&str, &str)]| of(vars).unwrap().cache.display().to_string();
        assert_eq!(cache(&[home]), "/missing-home/.cache/huggingface/hub");
        assert_eq!(cache(&[("HF_HOME", "~/x"), home]), "/missing-home/x/hub");
        assert_eq!(cache(&[("HF_HUB_CACHE", "/c"), ("HF_HOME", "/x")]), "/c");
        assert!(matches!(of(&[]), Err(HubError::NoCache)));
        let all = of(&[
            home,
            ("HF_ENDPOINT", "http://127.0.0.1:9/"),
            ("HF_TOKEN", " hf_x "),
            ("HF_HUB_OFFLINE", "ON"),
        ]);
        let all = all.unwrap();
        assert_eq!(all.endpoint, "http://127.0.0.1:9");
        assert_eq!(all.token.as_deref(), Some("hf_x"));
        assert!(all.is_offline && !of(&[home, ("HF_HUB_OFFLINE", "0")]).unwrap().is_offline);
        assert!(!format!("{all:?}").contains("hf_x"));
    }

    #[test]
    fn invalid_settings_are_named() {
        let home = ("HOME", "/missing-home");
        for (variable, value) in [
            ("HF_ENDPOINT", "example"),
            ("HF_ENDPOINT", "https://"),
            ("HF_ENDPOINT", "https://a@b"),
            ("HF_TOKEN", "a\nb"),
        ] {
            let error = of(&[home, (variable, value)]).unwrap_err();
            let is_of =
                matches!(&error, HubError::BadSetting { variable: own, .. } if *own == variable);
            assert!(is_of, "{value}: {error}");
        }
    }
}
