//! The download of one file: parallel ranges, written in order, checked by its digest.
//!
//! A file that is not complete is always a prefix of the contents, as other tools of the hub expect
//! if they continue it.

mod ordered;

use std::fs::{File, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use sha2::Digest as _;

use crate::client::{Answer, Ask, Failure, HubClient, RequestTarget, header, network, shown};
use crate::error::HubError;
use crate::listing::FileDigest;
use crate::progress::{PullEvent, PullProgress};

/// Size of the buffer of one connection, in bytes.
const BUFFER_BYTES: usize = 64 << 10;
/// Time after which a waiting connection notices that the download has failed.
const STOP_INTERVAL: Duration = Duration::from_millis(50);

/// A file to download.
pub(crate) struct Transfer<'a> {
    pub(crate) client: &'a HubClient,
    pub(crate) progress: &'a dyn PullProgress,
    /// Address of the file on the hub.
    pub(crate) url: String,
    pub(crate) of: RequestTarget<'a>,
    pub(crate) digest: &'a FileDigest,
    pub(crate) bytes: u64,
}

impl Transfer<'_> {
    /// Completes the file at `partial`, which may have a prefix of the contents.
    ///
    /// # Errors
    /// [`HubError`]; what has arrived stays in the file, unless it is wrong.
    pub(crate) fn run(&self, partial: &Path) -> Result<(), HubError> {
        loop {
            match self.attempt(partial)? {
                TransferEnd::Complete => return Ok(()),
                TransferEnd::WrongDigest { resumed, found } => {
                    std::fs::remove_file(partial).map_err(HubError::write("remove", partial, 0))?;
                    if resumed == 0 {
                        return Err(self.wrong_digest(found));
                    }
                }
            }
            // The prefix of an earlier attempt was wrong.
            self.progress.event(PullEvent::Again(self.bytes));
        }
    }

    fn attempt(&self, partial: &Path) -> Result<TransferEnd, HubError> {
        let failed = |action| HubError::write(action, partial, self.bytes);
        let mut out = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(partial)
            .map_err(failed("create"))?;
        let mut start = out.metadata().map_err(HubError::read(partial))?.len();
        if start > self.bytes {
            out.set_len(0).map_err(failed("write"))?;
            start = 0;
        }
        let mut hash = ContentHash::new(self.digest, self.bytes);
        hash.update_from(&mut out, start)
            .map_err(HubError::read(partial))?;
        self.progress.event(PullEvent::File {
            path: self.of.file.unwrap_or_default(),
            bytes: self.bytes,
            resumed: start,
        });
        let resumed = start;
        let mut sink = FileSink {
            out,
            hash,
            at: start,
            bytes: self.bytes,
            path: partial,
            progress: self.progress,
        };
        if start < self.bytes {
            self.load(&mut sink)?;
        }
        let FileSink { out, hash, .. } = sink;
        let found = hash.hex();
        if found != self.digest.hex() {
            return Ok(TransferEnd::WrongDigest { resumed, found });
        }
        out.sync_all().map_err(failed("write"))?;
        Ok(TransferEnd::Complete)
    }

    /// Loads what is missing in the file. The first answer shows whether the server has ranges.
    fn load(&self, sink: &mut FileSink<'_>) -> Result<(), HubError> {
        let shared = SharedLocation::default();
        let chunk = self.client.settings.chunk_bytes.max(1);
        let end = self.bytes.min(sink.at.saturating_add(chunk));
        let first = self.client.repeat(self.progress, || {
            self.open(&shared, Ask::Range(sink.at, end))
        })?;
        match first.response.status().as_u16() {
            206 => ordered::load(self, sink, &shared, first),
            _ => self.stream(sink, first, &shared),
        }
    }

    /// Loads the whole file through one connection, for servers without ranges.
    fn stream(
        &self,
        sink: &mut FileSink<'_>,
        first: Answer,
        shared: &SharedLocation,
    ) -> Result<(), HubError> {
        let mut answer = Some(first);
        let mut failed = 0;
        loop {
            let before = sink.at;
            let done = match answer.take() {
                Some(answer) => self.copy(sink, answer),
                None => match self.open(shared, Ask::Whole) {
                    Ok(answer) => self.copy(sink, answer),
                    Err(failure) => Err(failure),
                },
            };
            let Err(failure) = done else {
                return Ok(());
            };
            failed = if sink.at > before { 1 } else { failed + 1 };
            std::thread::sleep(self.client.pause(failure, failed, self.progress)?);
        }
    }

    /// Appends the rest of the file from an answer that has all of it.
    fn copy(&self, sink: &mut FileSink<'_>, answer: Answer) -> Result<(), Failure> {
        let url = answer.url;
        let mut body = answer.response.into_body().into_reader();
        let mut buffer = vec![0; BUFFER_BYTES];
        let mut skipped = 0;
        while sink.at < self.bytes {
            let n = body.read(&mut buffer).map_err(|e| network(&url, &e))?;
            if n == 0 {
                return Err(self.cut(&url, sink.at));
            }
            let skip = (sink.at - skipped).min(n as u64);
            // `sink.at` grows only after everything before it is skipped.
            skipped += skip;
            let fresh = &buffer[skip as usize..n];
            let rest = usize::try_from(self.bytes - sink.at).unwrap_or(usize::MAX);
            let fresh = &fresh[..fresh.len().min(rest)];
            sink.write(fresh)?;
            skipped += fresh.len() as u64;
        }
        Ok(())
    }

    /// A connection that ended early.
    fn cut(&self, url: &str, at: u64) -> Failure {
        let reason = format!("the connection ended after {at} of {} bytes", self.bytes);
        network(url, &std::io::Error::other(reason))
    }

    /// Opens the file, or a range of it, at the last address of a redirect.
    fn open(&self, shared: &SharedLocation, ask: Ask) -> Result<Answer, Failure> {
        let known = shared.get();
        let url = known.as_deref().unwrap_or(&self.url);
        let answer = self.client.follow(ask, url, &self.of).inspect_err(|_| {
            // Addresses with a signature expire; the hub gives a new one.
            shared.set(None);
        })?;
        self.check(&answer, ask)?;
        shared.set(Some(answer.url.clone()));
        Ok(answer)
    }

    /// Checks the headers of an answer: the file that the hub announces, and the range.
    fn check(&self, answer: &Answer, ask: Ask) -> Result<(), HubError> {
        let wrong = |what, expected: String, found: String| HubError::Digest {
            file: self.of.file.unwrap_or_default().to_string(),
            url: shown(&answer.url),
            what,
            expected,
            found,
        };
        if let Some(digest) = &answer.digest
            && std::mem::discriminant(digest) == std::mem::discriminant(self.digest)
            && digest != self.digest
        {
            let (expected, found) = (self.digest.hex(), digest.hex());
            return Err(wrong("announced digest", expected.into(), found.into()));
        }
        let headers = answer.response.headers();
        let protocol = |reason: String| HubError::Protocol {
            url: shown(&answer.url),
            reason,
        };
        match (ask, answer.response.status().as_u16()) {
            (Ask::Range(start, _), 206) => {
                let range = header(headers, "content-range").unwrap_or_default();
                let parsed = content_range(range)
                    .ok_or_else(|| protocol(format!("an invalid range `{range}`")))?;
                if parsed.0 != start {
                    return Err(protocol(format!(
                        "the range `{range}` does not start at {start}"
                    )));
                }
                match parsed.1 {
                    Some(all) if all != self.bytes => {
                        Err(wrong("size", self.bytes.to_string(), all.to_string()))
                    }
                    _ => Ok(()),
                }
            }
            (_, 200) => {
                let all = header(headers, "content-length").and_then(|n| n.parse::<u64>().ok());
                match all {
                    Some(all) if all != self.bytes => {
                        Err(wrong("size", self.bytes.to_string(), all.to_string()))
                    }
                    _ => Ok(()),
                }
            }
            (_, status) => Err(protocol(format!("an unexpected status {status}"))),
        }
    }

    fn wrong_digest(&self, found: String) -> HubError {
        HubError::Digest {
            file: self.of.file.unwrap_or_default().to_string(),
            url: shown(&self.url),
            what: match self.digest {
                FileDigest::Sha256(_) => "SHA-256 digest",
                FileDigest::GitSha1(_) => "git digest",
            },
            expected: self.digest.hex().to_string(),
            found,
        }
    }
}

enum TransferEnd {
    Complete,
    WrongDigest { resumed: u64, found: String },
}

/// The address that the hub redirected to, for all connections.
#[derive(Default)]
pub(super) struct SharedLocation(Mutex<Option<String>>);

impl SharedLocation {
    fn get(&self) -> Option<String> {
        let location = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        location.clone()
    }

    fn set(&self, url: Option<String>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = url;
    }
}

/// The file that grows, with the digest of its contents.
struct FileSink<'a> {
    out: File,
    hash: ContentHash,
    /// Bytes written so far.
    at: u64,
    /// Bytes of the whole file.
    bytes: u64,
    path: &'a Path,
    progress: &'a dyn PullProgress,
}

impl FileSink<'_> {
    fn write(&mut self, bytes: &[u8]) -> Result<(), HubError> {
        let needed = self.bytes - self.at;
        self.out
            .write_all(bytes)
            .map_err(HubError::write("write", self.path, needed))?;
        self.hash.update(bytes);
        self.at += bytes.len() as u64;
        self.progress.event(PullEvent::Bytes(bytes.len() as u64));
        Ok(())
    }
}

impl Transfer<'_> {
    /// Loads a range into memory. Connections that end early are continued. The second value has
    /// what arrived before an error.
    fn chunk(
        &self,
        shared: &SharedLocation,
        range: (u64, u64),
        first: Option<Answer>,
        stop: &AtomicBool,
    ) -> Result<Vec<u8>, (HubError, Vec<u8>)> {
        let (start, end) = range;
        let len = usize::try_from(end - start).unwrap_or(usize::MAX);
        let mut loaded = Vec::with_capacity(len.min(1 << 26));
        let mut answer = first;
        let mut failed = 0;
        loop {
            let before = loaded.len();
            let from = start + before as u64;
            let opened = match answer.take() {
                Some(answer) => Ok(answer),
                None => self.open(shared, Ask::Range(from, end)),
            };
            let done = opened.and_then(|answer| self.read(answer, &mut loaded, len, stop));
            let Err(failure) = done else {
                return Ok(loaded);
            };
            failed = if loaded.len() > before { 1 } else { failed + 1 };
            match self.client.pause(failure, failed, self.progress) {
                Ok(pause) => {
                    let until = Instant::now() + pause;
                    while Instant::now() < until && !stop.load(Ordering::Relaxed) {
                        std::thread::sleep(STOP_INTERVAL.min(pause));
                    }
                }
                Err(error) => return Err((error, loaded)),
            }
            if stop.load(Ordering::Relaxed) {
                return Err((self.cut(&self.url, from).error, loaded));
            }
        }
    }

    /// Reads a body until `loaded` has `len` bytes.
    fn read(
        &self,
        answer: Answer,
        loaded: &mut Vec<u8>,
        len: usize,
        stop: &AtomicBool,
    ) -> Result<(), Failure> {
        if answer.response.status().as_u16() != 206 {
            let reason = "the server answered one request with a range, and another without";
            return Err(HubError::Protocol {
                url: shown(&answer.url),
                reason: reason.to_string(),
            }
            .into());
        }
        let url = answer.url;
        let mut body = answer.response.into_body().into_reader();
        let mut buffer = vec![0; BUFFER_BYTES];
        loop {
            let n = body.read(&mut buffer).map_err(|e| network(&url, &e))?;
            let fresh = n.min(len - loaded.len());
            loaded.extend_from_slice(&buffer[..fresh]);
            match (n, loaded.len() == len) {
                // The end of the body frees the connection for the next request.
                (0, true) => return Ok(()),
                (0, false) => return Err(self.cut(&url, loaded.len() as u64)),
                (n, true) if n > fresh => return Ok(()),
                _ if stop.load(Ordering::Relaxed) => return Err(self.cut(&url, 0)),
                _ => {}
            }
        }
    }
}

/// The start of a range and the size of the whole file, from `bytes 0-99/1000`.
fn content_range(text: &str) -> Option<(u64, Option<u64>)> {
    let (range, all) = text.trim().strip_prefix("bytes ")?.split_once('/')?;
    let (start, _) = range.split_once('-')?;
    let all = match all.trim() {
        "*" => None,
        all => Some(all.parse().ok()?),
    };
    Some((start.trim().parse().ok()?, all))
}

/// The digest of contents that arrive in order.
enum ContentHash {
    Sha256(sha2::Sha256),
    Git(sha1::Sha1),
}

impl ContentHash {
    fn new(digest: &FileDigest, bytes: u64) -> ContentHash {
        match digest {
            FileDigest::Sha256(_) => ContentHash::Sha256(sha2::Sha256::new()),
            FileDigest::GitSha1(_) => {
                let header = format!("blob {bytes}\0");
                ContentHash::Git(sha1::Sha1::new_with_prefix(header))
            }
        }
    }

    fn update(&mut self, bytes: &[u8]) {
        match self {
            ContentHash::Sha256(hash) => hash.update(bytes),
            ContentHash::Git(hash) => hash.update(bytes),
        }
    }

    /// Adds the first `len` bytes of a file. The position is at their end then.
    fn update_from(&mut self, file: &mut File, len: u64) -> std::io::Result<()> {
        file.seek(SeekFrom::Start(0))?;
        let mut buffer = vec![0; BUFFER_BYTES];
        let mut rest = len;
        while rest > 0 {
            let want = buffer
                .len()
                .min(usize::try_from(rest).unwrap_or(usize::MAX));
            let n = file.read(&mut buffer[..want])?;
            if n == 0 {
                return Err(std::io::ErrorKind::UnexpectedEof.into());
            }
            self.update(&buffer[..n]);
            rest -= n as u64;
        }
        Ok(())
    }

    fn hex(self) -> String {
        let hex = |bytes: &[u8]| bytes.iter().map(|b| format!("{b:02x}")).collect();
        match self {
            ContentHash::Sha256(hash) => hex(&hash.finalize()),
            ContentHash::Git(hash) => hex(&hash.finalize()),
        }
    }
}

/// The digest of the contents of a file, of the kind of `expected`.
pub(crate) fn digest_of_file(path: &Path, expected: &FileDigest) -> Result<String, HubError> {
    let mut file = File::open(path).map_err(HubError::read(path))?;
    let len = file.metadata().map_err(HubError::read(path))?.len();
    let mut hash = ContentHash::new(expected, len);
    hash.update_from(&mut file, len)
        .map_err(HubError::read(path))?;
    Ok(hash.hex())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digests_are_those_of_git_and_of_the_contents() {
        let path = std::env::temp_dir().join(format!("tercet-hub-digest-{}", std::process::id()));
        std::fs::write(&path, "hello\n").unwrap();
        // `git hash-object` and `sha256sum` of the same file.
        let known = [
            "ce013625030ba8dba906f756967f9e9ca394464a",
            "5891b5b522d5df086d0ff0b110fbd9d21bb4fc7163af34d08286a2e846f6be03",
        ];
        for hex in known {
            let digest = FileDigest::from_hex(hex).unwrap();
            assert_eq!(digest_of_file(&path, &digest).unwrap(), hex);
        }
        std::fs::remove_file(path).unwrap();
    }

    #[test]
    fn ranges_have_a_start_and_a_size() {
        assert_eq!(content_range("bytes 5-9/10"), Some((5, Some(10))));
        assert_eq!(content_range("bytes 5-9/*"), Some((5, None)));
        for text in ["", "5-9/10", "bytes */10", "bytes x-9/10", "bytes 5-9"] {
            assert_eq!(content_range(text), None, "{text}");
        }
    }
}
