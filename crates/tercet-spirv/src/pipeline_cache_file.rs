//! Driver pipeline-cache file: persists a driver's compiled pipelines across processes.
//!
//! A header with the driver identity, the length and a digest precedes the driver's bytes, because
//! drivers trust their input. A file that is missing, damaged, truncated, unreadable or from
//! another driver is ignored.

use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};

use crate::files;

const MAGIC: [u8; 8] = *b"tercetPC";
const VERSION: u32 = 2;
/// Magic, version, vendor, device, driver version, two ids, length, digest.
const HEADER_BYTES: usize = 8 + 4 * 4 + 2 * 16 + 8 + 32;
/// Maximum blob size, for reading and writing. Driver caches grow with every kernel ever used;
/// above this size the cache starts again from empty.
const MAX_BYTES: u64 = 256 << 20;
/// Maximum total size of the cache files of all devices and drivers. The least recently used files,
/// such as those of replaced drivers, are removed first.
const MAX_FOLDER_BYTES: u64 = 1 << 30;
const EXTENSION: &str = "bin";

/// Identity of the device and driver. A driver can only use pipelines written under the same
/// identity.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DriverIdentity {
    /// PCI vendor id of the device.
    pub vendor: u32,
    /// Device id, assigned by the vendor.
    pub device: u32,
    /// Driver version, in the driver's own encoding.
    pub driver_version: u32,
    /// UUID of the driver.
    pub driver_uuid: [u8; 16],
    /// UUID of the driver's pipeline-cache format.
    pub cache_uuid: [u8; 16],
}

impl DriverIdentity {
    /// File stem for this device and driver.
    pub fn file_stem(&self) -> String {
        let id: String = self.cache_uuid.iter().map(|b| format!("{b:02x}")).collect();
        format!("{:04x}-{:04x}-{id}", self.vendor, self.device)
    }
}

/// Pipeline-cache file of one device, one driver and one kind of user.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PipelineFile {
    path: PathBuf,
    identity: DriverIdentity,
}

impl PipelineFile {
    /// The file in the folder `cache_dir`. `kind` is the prefix of the file name and separates
    /// different formats.
    pub fn new(cache_dir: &Path, kind: &str, identity: DriverIdentity) -> PipelineFile {
        let name = format!("{kind}-{}.{EXTENSION}", identity.file_stem());
        PipelineFile {
            path: cache_dir.join(name),
            identity,
        }
    }

    /// Reads the driver's bytes. `None` if the file is damaged or belongs to another device or
    /// driver.
    pub fn load(&self) -> Option<Vec<u8>> {
        decode(files::read(&self.path, MAX_BYTES)?, &self.identity)
    }

    /// Replaces the file. On failure the old file remains; the next process then starts without the
    /// new pipelines.
    pub fn store(&self, blob: &[u8]) {
        let mut bytes = header(&self.identity, blob);
        bytes.extend_from_slice(blob);
        let fits = bytes.len() as u64 <= MAX_BYTES;
        if fits
            && files::replace(&self.path, &bytes).is_ok()
            && let Some(dir) = self.path.parent()
        {
            files::evict_to(dir, EXTENSION, MAX_FOLDER_BYTES);
        }
    }
}

fn header(identity: &DriverIdentity, blob: &[u8]) -> Vec<u8> {
    let mut bytes = MAGIC.to_vec();
    let DriverIdentity {
        vendor,
        device,
        driver_version,
        driver_uuid,
        cache_uuid,
    } = identity;
    for word in [VERSION, *vendor, *device, *driver_version] {
        bytes.extend_from_slice(&word.to_le_bytes());
    }
    bytes.extend_from_slice(driver_uuid);
    bytes.extend_from_slice(cache_uuid);
    bytes.extend_from_slice(&(blob.len() as u64).to_le_bytes());
    bytes.extend_from_slice(&Sha256::digest(blob));
    bytes
}

fn decode(mut bytes: Vec<u8>, identity: &DriverIdentity) -> Option<Vec<u8>> {
    let blob = bytes.get(HEADER_BYTES..)?;
    if bytes[..HEADER_BYTES] != header(identity, blob) {
        return None;
    }
    bytes.drain(..HEADER_BYTES);
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    const IDENTITY: DriverIdentity = DriverIdentity {
        vendor: 1,
        device: 2,
        driver_version: 3,
        driver_uuid: [4; 16],
        cache_uuid: [5; 16],
    };

    #[test]
    fn what_is_stored_is_loaded_and_nothing_else() {
        let blob: Vec<u8> = (0..1000u32).map(|i| (i * 7) as u8).collect();
        let mut bytes = header(&IDENTITY, &blob);
        assert_eq!(bytes.len(), HEADER_BYTES);
        bytes.extend_from_slice(&blob);
        assert_eq!(decode(bytes.clone(), &IDENTITY), Some(blob));
        for cut in [0, 1, HEADER_BYTES - 1, HEADER_BYTES, bytes.len() - 1] {
            assert_eq!(
                decode(bytes[..cut].to_vec(), &IDENTITY),
                None,
                "cut to {cut}"
            );
        }
        for at in 0..bytes.len() {
            let mut damaged = bytes.clone();
            damaged[at] ^= 1 << (at % 8);
            assert_eq!(decode(damaged, &IDENTITY), None, "byte {at}");
        }
        let longer = [bytes.clone(), vec![0]].concat();
        assert_eq!(decode(longer, &IDENTITY), None);
        let other = DriverIdentity {
            driver_version: 4,
            ..IDENTITY
        };
        assert_eq!(decode(bytes, &other), None);
    }

    #[test]
    fn a_folder_that_cannot_be_written_is_no_error() {
        let file = PipelineFile::new(Path::new("/proc/none"), "pipelines", IDENTITY);
        file.store(b"x");
        assert_eq!(file.load(), None);
    }

    #[test]
    fn players_have_files_of_their_own() {
        let dir = crate::files::tests::TestFolder::new("kinds");
        let file = |kind| PipelineFile::new(&dir.0, kind, IDENTITY);
        file("pipelines").store(b"a");
        file("wgpu").store(b"b");
        assert_eq!(file("pipelines").load().as_deref(), Some(&b"a"[..]));
        assert_eq!(file("wgpu").load().as_deref(), Some(&b"b"[..]));
    }
}
