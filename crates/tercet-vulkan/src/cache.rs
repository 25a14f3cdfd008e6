//! The file that keeps the driver's pipeline cache from one process to the next.
//!
//! A header of ours stands before the driver's bytes: who wrote them, how many, and a checksum,
//! because drivers trust what they are given. A file that is missing, damaged, cut, of another
//! driver or not readable is as good as none. It is replaced whole, by renaming, so that concurrent
//! writers leave one file of one of them.

use std::fs;
use std::path::{Path, PathBuf};
use std::process;
use std::sync::atomic::{AtomicU64, Ordering};

use tercet_plan::Tuning;

use crate::features::Identity;

const MAGIC: [u8; 8] = *b"tercetPC";
const VERSION: u32 = 1;
/// Magic, version, vendor, device, driver version, two ids, length, checksum.
const HEADER_BYTES: usize = 8 + 4 * 4 + 2 * 16 + 8 + 8;
/// More than this is not read: no driver's cache of our pipelines comes near.
const MAX_BYTES: u64 = 1 << 30;

/// The name of the file of pipelines for a device and driver.
pub(crate) fn file_name(identity: &Identity) -> String {
    format!("pipelines-{}.bin", device_name(identity))
}

/// The name of the file of measurements for a device and driver.
pub(crate) fn tuning_name(identity: &Identity) -> String {
    format!("tuning-{}.txt", device_name(identity))
}

fn device_name(identity: &Identity) -> String {
    let id: String = identity
        .cache_uuid
        .iter()
        .map(|b| format!("{b:02x}"))
        .collect();
    format!("{:04x}-{:04x}-{id}", identity.vendor, identity.device)
}

/// The measurements in a file; one that is missing or damaged is as good as none.
pub(crate) fn load_tuning(file: &Path) -> Option<Tuning> {
    let text = fs::read_to_string(file).ok()?;
    match text.parse() {
        Ok(tuning) => Some(tuning),
        Err(e) => {
            tracing::warn!("{}: {e}", file.display());
            None
        }
    }
}

/// Replaces the measurements in a file.
pub(crate) fn store_tuning(file: &Path, tuning: &Tuning) -> std::io::Result<()> {
    replace(file, tuning.to_string().as_bytes())
}

/// The driver's bytes in the file, if it is whole and of this device and driver.
pub(crate) fn load(file: &Path, identity: &Identity) -> Option<Vec<u8>> {
    let size = fs::metadata(file).ok()?.len();
    if size > MAX_BYTES {
        return None;
    }
    decode(fs::read(file).ok()?, identity)
}

/// Replaces the file. Failure leaves the old one.
pub(crate) fn store(file: &Path, identity: &Identity, blob: &[u8]) {
    // The caller goes on without a cache.
    let _ = try_store(file, identity, blob);
}

fn try_store(file: &Path, identity: &Identity, blob: &[u8]) -> std::io::Result<()> {
    let mut bytes = header(identity, blob);
    bytes.extend_from_slice(blob);
    replace(file, &bytes)
}

fn replace(file: &Path, bytes: &[u8]) -> std::io::Result<()> {
    if let Some(dir) = file.parent() {
        fs::create_dir_all(dir)?;
    }
    let temporary = temporary(file);
    let done = fs::write(&temporary, bytes).and_then(|()| fs::rename(&temporary, file));
    if done.is_err() {
        let _ = fs::remove_file(&temporary);
    }
    done
}

/// A name in the same folder that no other writer uses.
fn temporary(file: &Path) -> PathBuf {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    file.with_extension(format!("{}-{count}.tmp", process::id()))
}

fn header(identity: &Identity, blob: &[u8]) -> Vec<u8> {
    let mut bytes = MAGIC.to_vec();
    let Identity {
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
    bytes.extend_from_slice(&checksum(blob).to_le_bytes());
    bytes
}

fn decode(mut bytes: Vec<u8>, identity: &Identity) -> Option<Vec<u8>> {
    let blob = bytes.get(HEADER_BYTES..)?;
    if bytes[..HEADER_BYTES] != header(identity, blob) {
        return None;
    }
    bytes.drain(..HEADER_BYTES);
    Some(bytes)
}

/// FNV-1a over eight bytes at a time: against damage, not against malice.
fn checksum(bytes: &[u8]) -> u64 {
    let step = |sum: u64, word: u64| (sum ^ word).wrapping_mul(0x0000_0100_0000_01b3);
    let mut sum = 0xcbf2_9ce4_8422_2325;
    for chunk in bytes.chunks(8) {
        let mut word = [0; 8];
        word[..chunk.len()].copy_from_slice(chunk);
        sum = step(sum, u64::from_le_bytes(word)).rotate_left(29);
    }
    sum
}

#[cfg(test)]
mod tests {
    use super::*;

    const IDENTITY: Identity = Identity {
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
        let other = Identity {
            driver_version: 4,
            ..IDENTITY
        };
        assert_eq!(decode(bytes, &other), None);
    }

    #[test]
    fn a_folder_that_cannot_be_written_is_no_error() {
        store(Path::new("/proc/none/pipelines.bin"), &IDENTITY, b"x");
        assert_eq!(load(Path::new("/proc/none/pipelines.bin"), &IDENTITY), None);
    }
}
