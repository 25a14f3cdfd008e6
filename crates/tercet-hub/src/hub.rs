//! Finding, downloading, listing and removing models.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use crate::cache::{self, RepoCache};
use crate::client::{HubClient, RequestTarget};
use crate::error::HubError;
use crate::listing::{FileDigest, RepoListing};
use crate::name::HubName;
use crate::progress::{PullEvent, PullProgress};
use crate::select::{FileSet, ModelFormat};
use crate::settings::HubSettings;
use crate::transfer::{Transfer, digest_of_file};

/// Maximum size of the index of safetensors shards, in bytes.
const MAX_INDEX_BYTES: u64 = 64 << 20;

/// A hub, and the cache of its models.
///
/// ```no_run
/// use tercet_hub::{Hub, HubSettings, PullEvent, PullOptions};
/// let hub = Hub::new(HubSettings::from_env()?);
/// let name = "org/model-GGUF:Q8_0".parse()?;
/// let model = hub.pull(&name, &PullOptions::default(), &|_: PullEvent<'_>| {})?;
/// println!("{}", model.path.display());
/// # Ok::<(), tercet_hub::HubError>(())
/// ```
#[derive(Clone, Debug)]
pub struct Hub {
    settings: HubSettings,
}

/// Choices of a download.
///
/// ```
/// let options = tercet_hub::PullOptions { has_projector: true, ..Default::default() };
/// assert!(!options.rehashes);
/// ```
#[derive(Clone, Copy, Default)]
pub struct PullOptions<'a> {
    /// Free memory of the device in bytes, if known. It decides between quantizations if the name has
    /// none, and is asked only then.
    pub free_bytes: Option<&'a dyn Fn() -> Option<u64>>,
    /// Whether the image projector (`mmproj`) of the repository is downloaded too.
    pub has_projector: bool,
    /// Whether files that are there already are checked by their digests, and replaced if wrong.
    pub rehashes: bool,
}

/// A model in the cache.
///
/// ```no_run
/// # let hub = tercet_hub::Hub::new(tercet_hub::HubSettings::from_env()?);
/// if let Some(model) = hub.find("org/model")? {
///     println!("{} {} bytes", model.path.display(), model.bytes);
/// }
/// # Ok::<(), tercet_hub::HubError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CachedModel {
    /// The repository, `ORG/NAME`.
    pub repo: String,
    /// The commit, 40 hexadecimal digits.
    pub commit: String,
    /// The format.
    pub format: ModelFormat,
    /// The quantization, if the name of the file has one.
    pub quant: Option<String>,
    /// The file to open, or the folder.
    pub path: PathBuf,
    /// All files of the model, sorted.
    pub files: Vec<PathBuf>,
    /// Size of all files in bytes.
    pub bytes: u64,
    /// The image projector, if the cache has it.
    pub projector: Option<PathBuf>,
}

/// A repository in the cache.
///
/// ```no_run
/// # let hub = tercet_hub::Hub::new(tercet_hub::HubSettings::from_env()?);
/// for repo in hub.repos()? {
///     println!("{} {} bytes", repo.repo, repo.bytes);
/// }
/// # Ok::<(), tercet_hub::HubError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CachedRepo {
    /// The repository, `ORG/NAME`.
    pub repo: String,
    /// The commit of `main`, or the only one. None if there are several.
    pub commit: Option<String>,
    /// The models of this commit: their formats, and quantizations if they have some.
    pub models: Vec<(ModelFormat, Option<String>)>,
    /// Bytes of all contents.
    pub bytes: u64,
    /// Bytes of downloads that are not complete.
    pub partial_bytes: u64,
    /// Time of the last change.
    pub modified: Option<SystemTime>,
}

impl Hub {
    /// A hub with these settings. Nothing is read and nothing is sent.
    pub fn new(settings: HubSettings) -> Hub {
        Hub { settings }
    }

    /// The settings.
    pub fn settings(&self) -> &HubSettings {
        &self.settings
    }

    /// The files of a repository, from the hub.
    ///
    /// # Errors
    /// [`HubError`] of the network and the hub.
    pub fn listing(&self, name: &HubName) -> Result<RepoListing, HubError> {
        if self.settings.is_offline {
            return Err(self.offline(name));
        }
        HubClient::new(self.settings.clone())?.listing(name, &|_: PullEvent<'_>| {})
    }

    /// The model with a name, if the cache has all of it; nothing is sent and nothing is written. The
    /// name can be short: `NAME[:QUANT]` without the organization, and without `-GGUF` at its end.
    ///
    /// # Errors
    /// [`HubError::AmbiguousShortName`], [`HubError::SeveralModels`], [`HubError::DamagedCache`],
    /// [`HubError::Read`]. A text that cannot be a name is not found.
    pub fn find(&self, name: &str) -> Result<Option<CachedModel>, HubError> {
        match self.resolve(name)? {
            Some(name) => self.find_name(&name),
            None => Ok(None),
        }
    }

    /// The full name behind a full or short one; a short one must be in the cache.
    ///
    /// # Errors
    /// [`HubError::AmbiguousShortName`], [`HubError::Read`].
    pub fn resolve(&self, text: &str) -> Result<Option<HubName>, HubError> {
        if let Ok(name) = text.parse::<HubName>() {
            return Ok(Some(name));
        }
        let Ok(short) = HubName::short(text) else {
            return Ok(None);
        };
        let wanted = short.repo().to_ascii_lowercase();
        let is_same = |repo: &RepoCache| {
            let name = repo.repo.rsplit('/').next().unwrap_or_default();
            let name = name.to_ascii_lowercase();
            name == wanted || name.strip_suffix("-gguf") == Some(&wanted)
        };
        let mut found: Vec<String> = cache::repos(&self.settings.cache)?
            .into_iter()
            .filter(is_same)
            .map(|repo| repo.repo)
            .collect();
        match (found.pop(), found.len()) {
            (None, _) => Ok(None),
            (Some(repo), 0) => Ok(Some(short.in_repo(&repo))),
            (Some(last), _) => {
                found.push(last);
                Err(HubError::AmbiguousShortName {
                    name: text.to_string(),
                    repos: found.join(" or "),
                })
            }
        }
    }

    fn find_name(&self, name: &HubName) -> Result<Option<CachedModel>, HubError> {
        let repo = RepoCache::new(&self.settings.cache, name.repo());
        let Some(commit) = repo.commit(name.revision())? else {
            return Ok(None);
        };
        let listing = repo.listing(&commit)?;
        let set = match FileSet::choose(&listing, name, None) {
            Ok(set) => set,
            Err(e @ (HubError::SeveralModels { .. } | HubError::Read { .. })) => return Err(e),
            Err(_) => return Ok(None),
        };
        let folder = repo.snapshot(&commit);
        if set.format == ModelFormat::Safetensors && !has_all_shards(&folder)? {
            return Ok(None);
        }
        Ok(Some(cached(&repo, &commit, &set)))
    }

    /// Downloads what the cache lacks of a model, and returns its place. What has arrived stays if the
    /// download fails, and the next one continues there, in this or another process. The model is
    /// found under its name only when it is complete.
    ///
    /// # Errors
    /// [`HubError`].
    pub fn pull(
        &self,
        name: &HubName,
        options: &PullOptions<'_>,
        progress: &dyn PullProgress,
    ) -> Result<CachedModel, HubError> {
        if self.settings.is_offline {
            let found = self.find_name(name)?;
            return found.ok_or_else(|| self.offline(name));
        }
        let client = HubClient::new(self.settings.clone())?;
        let listing = client.listing(name, progress)?;
        let is_choice = name.quant().is_none() && name.file().is_none();
        let free_bytes = match options.free_bytes {
            Some(ask) if is_choice && FileSet::quants(&listing)?.len() > 1 => ask(),
            _ => None,
        };
        let set = FileSet::choose(&listing, name, free_bytes)?;
        let projector = set.projector.iter().filter(|_| options.has_projector);
        let pull = Pull {
            client: &client,
            repo: RepoCache::new(&self.settings.cache, name.repo()),
            listing: &listing,
            progress,
            rehashes: options.rehashes,
        };
        let mut files = Vec::new();
        for file in set.files.iter().chain(projector) {
            let (digest, bytes) = client.described(&listing, file, progress)?;
            files.push((file.path.as_str(), digest, bytes));
        }
        pull.run(&files).inspect_err(|_| pull.repo.remove_empty())?;
        pull.repo.set_ref(name.revision(), &listing.commit)?;
        Ok(cached(&pull.repo, &listing.commit, &set))
    }

    /// The model with a name: from the cache, or else from the hub.
    ///
    /// # Errors
    /// [`HubError`]; [`HubError::BadName`] if a short name is not in the cache.
    pub fn open(
        &self,
        text: &str,
        options: &PullOptions<'_>,
        progress: &dyn PullProgress,
    ) -> Result<CachedModel, HubError> {
        let name = match self.resolve(text)? {
            Some(name) => name,
            None => text.parse()?,
        };
        match self.find_name(&name)? {
            Some(found) => Ok(found),
            None => self.pull(&name, options, progress),
        }
    }

    /// The repositories of the cache, sorted by name.
    ///
    /// # Errors
    /// [`HubError::Read`] if the folder of the cache cannot be read.
    pub fn repos(&self) -> Result<Vec<CachedRepo>, HubError> {
        let repos = cache::repos(&self.settings.cache)?;
        Ok(repos.iter().map(described).collect())
    }

    /// Removes a model from the cache: with a quantization or a file only that one, otherwise the whole
    /// repository. Returns the freed bytes.
    ///
    /// # Errors
    /// [`HubError::NotCached`], [`HubError::Busy`] if a process downloads it, [`HubError::Write`].
    pub fn remove(&self, text: &str) -> Result<u64, HubError> {
        let missing = || HubError::NotCached {
            name: text.chars().take(200).collect(),
            cache: self.settings.cache.clone(),
        };
        let name = self.resolve(text)?.ok_or_else(missing)?;
        let repo = RepoCache::new(&self.settings.cache, name.repo());
        if !repo.dir.is_dir() {
            return Err(missing());
        }
        if name.quant().is_none() && name.file().is_none() {
            return repo.remove();
        }
        let mut paths = BTreeSet::new();
        for commit in repo.commits() {
            if let Ok(set) = FileSet::choose(&repo.listing(&commit)?, &name, None) {
                paths.extend(set.files.into_iter().map(|file| file.path));
            }
        }
        if paths.is_empty() {
            return Err(missing());
        }
        let freed = repo.remove_files(&paths)?;
        let whole = HubName::from_repo(name.repo());
        let is_left = |commit: &String| match repo.listing(commit) {
            Ok(listing) => {
                let found = FileSet::choose(&listing, &whole, None);
                !matches!(found, Err(HubError::NoModel { .. }))
            }
            Err(_) => true,
        };
        match repo.commits().iter().any(is_left) {
            true => Ok(freed),
            false => Ok(freed + repo.remove()?),
        }
    }

    fn offline(&self, name: &HubName) -> HubError {
        HubError::Offline {
            name: name.to_string(),
            cache: self.settings.cache.clone(),
        }
    }
}

/// A download into one repository of the cache.
struct Pull<'a> {
    client: &'a HubClient,
    repo: RepoCache,
    listing: &'a RepoListing,
    progress: &'a dyn PullProgress,
    rehashes: bool,
}

/// Path, digest and size of a file.
type PulledFile<'a> = (&'a str, FileDigest, u64);

impl Pull<'_> {
    fn run(&self, files: &[PulledFile<'_>]) -> Result<(), HubError> {
        if self.rehashes {
            self.discard_wrong(files)?;
        }
        let missing: Vec<&PulledFile<'_>> = files
            .iter()
            .filter(|(path, digest, bytes)| {
                let is_there = self.repo.has(&self.listing.commit, path, *bytes);
                !is_there && !has_blob(&self.repo.blob(digest), *bytes)
            })
            .collect();
        if !missing.is_empty() {
            cache::create_dir(&self.repo.blobs())?;
            self.check_space(&missing)?;
            self.progress.event(PullEvent::Started {
                files: missing.len(),
                bytes: missing.iter().map(|(.., bytes)| bytes).sum(),
            });
        }
        for file in missing {
            self.load(file)?;
        }
        // Links come last: a snapshot has all files of a model, or none.
        for (path, digest, bytes) in files {
            let commit = &self.listing.commit;
            if has_blob(&self.repo.blob(digest), *bytes) {
                self.repo.link(commit, path, digest, *bytes)?;
            }
        }
        Ok(())
    }

    /// Downloads a file, unless another process does at the same time.
    fn load(&self, (path, digest, bytes): &PulledFile<'_>) -> Result<(), HubError> {
        let _held = self.repo.lock(digest, self.progress)?;
        let blob = self.repo.blob(digest);
        if has_blob(&blob, *bytes) {
            self.progress.event(PullEvent::File {
                path,
                bytes: *bytes,
                resumed: *bytes,
            });
            return Ok(());
        }
        let partial = self.repo.partial(digest);
        let transfer = Transfer {
            client: self.client,
            progress: self.progress,
            url: self.client.file_url(self.listing, path),
            of: RequestTarget::of(self.listing, path),
            digest,
            bytes: *bytes,
        };
        transfer.run(&partial).inspect_err(|_| {
            if fs::metadata(&partial).is_ok_and(|found| found.len() == 0) {
                let _ = fs::remove_file(&partial);
            }
        })?;
        fs::rename(&partial, &blob).map_err(HubError::write("write", &blob, 0))
    }

    /// Checks that the disk has room, before a download that would fill it.
    fn check_space(&self, missing: &[&PulledFile<'_>]) -> Result<(), HubError> {
        let rest = |(_, digest, bytes): &&PulledFile<'_>| {
            let partial = fs::metadata(self.repo.partial(digest));
            bytes.saturating_sub(partial.map_or(0, |found| found.len()))
        };
        let needed = missing
            .iter()
            .map(rest)
            .fold(0, |all: u64, n| all.saturating_add(n));
        match fs4::available_space(&self.repo.dir) {
            Ok(free) if free < needed => Err(HubError::DiskFull {
                path: self.repo.dir.clone(),
                needed,
                free: format!(", and {} are free", crate::error::size(free)),
            }),
            // A file system that does not tell its free space tells when it is full.
            _ => Ok(()),
        }
    }

    /// Removes contents whose digest is wrong.
    fn discard_wrong(&self, files: &[PulledFile<'_>]) -> Result<(), HubError> {
        for (_, digest, _) in files {
            let blob = self.repo.blob(digest);
            if !blob.is_file() || digest_of_file(&blob, digest)? == digest.hex() {
                continue;
            }
            let _held = self.repo.lock(digest, self.progress)?;
            fs::remove_file(&blob).map_err(HubError::write("remove", &blob, 0))?;
        }
        Ok(())
    }
}

fn has_blob(blob: &Path, bytes: u64) -> bool {
    fs::metadata(blob).is_ok_and(|found| found.is_file() && found.len() == bytes)
}

fn cached(repo: &RepoCache, commit: &str, set: &FileSet) -> CachedModel {
    let folder = repo.snapshot(commit);
    let place = |path: &str| {
        path.split('/')
            .fold(folder.clone(), |at, part| at.join(part))
    };
    let projector = set.projector.as_ref().map(|file| place(&file.path));
    let mut files: Vec<PathBuf> = set.files.iter().map(|file| place(&file.path)).collect();
    files.sort();
    CachedModel {
        repo: repo.repo.clone(),
        commit: commit.to_string(),
        format: set.format,
        quant: set.quant.clone(),
        path: match set.open.is_empty() {
            true => folder.clone(),
            false => place(&set.open),
        },
        files,
        bytes: set.bytes(),
        projector: projector.filter(|path| path.is_file()),
    }
}

fn described(repo: &RepoCache) -> CachedRepo {
    let commit = repo.commit("main").ok().flatten();
    let listing = commit.as_ref().and_then(|commit| repo.listing(commit).ok());
    let mut models = Vec::new();
    if let Some(listing) = listing {
        let quants = FileSet::quants(&listing).unwrap_or_default();
        models.extend(quants.into_iter().map(|set| (set.format, set.quant)));
        let bare = RepoListing {
            files: listing
                .files
                .into_iter()
                .filter(|file| !file.path.ends_with(".gguf"))
                .collect(),
            ..listing
        };
        let other = FileSet::choose(&bare, &HubName::from_repo(&repo.repo), None);
        models.extend(other.map(|set| (set.format, None)));
    }
    let (bytes, partial_bytes) = repo.bytes();
    let modified = fs::metadata(repo.blobs()).or_else(|_| fs::metadata(&repo.dir));
    CachedRepo {
        repo: repo.repo.clone(),
        commit,
        models,
        bytes,
        partial_bytes,
        modified: modified.and_then(|found| found.modified()).ok(),
    }
}

/// Whether a folder has every shard that its index names.
fn has_all_shards(folder: &Path) -> Result<bool, HubError> {
    let index = folder.join("model.safetensors.index.json");
    if !index.is_file() {
        return Ok(true);
    }
    let bytes = fs::metadata(&index).map_err(HubError::read(&index))?.len();
    if bytes > MAX_INDEX_BYTES {
        return Ok(true);
    }
    let text = fs::read(&index).map_err(HubError::read(&index))?;
    // The reader of the model reports an invalid index.
    let Ok(json) = serde_json::from_slice::<serde_json::Value>(&text) else {
        return Ok(true);
    };
    let map = json.get("weight_map").and_then(|map| map.as_object());
    let shards: BTreeSet<&str> = map
        .into_iter()
        .flat_map(|map| map.values().filter_map(|shard| shard.as_str()))
        .collect();
    Ok(shards.iter().all(|shard| folder.join(shard).is_file()))
}
