//! The replacement table of a SentencePiece normalizer (`precompiled_charsmap`).
//!
//! The bytes are the length of a trie, the trie as a Darts-clone double array, and the text that
//! the trie's values point into. Each replacement ends with a zero byte. Everything that a lookup
//! can reach is validated once, when the table is read.

/// Maximum length of a replacement, in bytes (U+FDFA becomes 33). The limit bounds the growth of a
/// text.
const MAX_REPLACEMENT_BYTES: usize = 256;
/// Maximum length of a replaced string, because a damaged trie may have cycles.
const MAX_REPLACED_BYTES: usize = 256;

/// A table of strings and their replacements.
#[derive(Debug)]
pub(super) struct CharsMap {
    /// The trie's units: an 8-bit label, a flag for a following value, and the offset of the
    /// children.
    units: Vec<u32>,
    replacements: String,
}

fn offset(unit: u32) -> usize {
    ((unit >> 10) << ((unit & (1 << 9)) >> 6)) as usize
}

impl CharsMap {
    /// Reads a table; the error says what is invalid.
    pub(super) fn parse(bytes: &[u8]) -> Result<CharsMap, &'static str> {
        let (len, rest) = bytes.split_first_chunk().ok_or("it is truncated")?;
        let len = u32::from_le_bytes(*len) as usize;
        let (trie, replacements) = rest
            .split_at_checked(len / 4 * 4)
            .ok_or("it is truncated")?;
        let units = trie.chunks_exact(4);
        let units = units.map(|unit| u32::from_le_bytes([unit[0], unit[1], unit[2], unit[3]]));
        let replacements =
            std::str::from_utf8(replacements).map_err(|_| "its text is not UTF-8")?;
        let map = CharsMap {
            units: units.collect(),
            replacements: replacements.to_owned(),
        };
        map.check()?;
        Ok(map)
    }

    /// Follows every path of the trie and checks that each step and each value is in bounds.
    fn check(&self) -> Result<(), &'static str> {
        const OUT: &str = "its trie points out of bounds";
        let mut seen = vec![false; self.units.len()];
        let mut waiting = vec![offset(*self.units.first().ok_or(OUT)?)];
        while let Some(children) = waiting.pop() {
            for byte in 1..256u32 {
                let at = children ^ byte as usize;
                let unit = *self.units.get(at).ok_or(OUT)?;
                if unit & (1 << 31 | 0xff) != byte || std::mem::replace(&mut seen[at], true) {
                    continue;
                }
                let next = at ^ offset(unit);
                if unit >> 8 & 1 == 1 {
                    let value = self.units.get(next).ok_or(OUT)? & ((1 << 31) - 1);
                    let text = self.replacements.get(value as usize..).ok_or(OUT)?;
                    let mut bytes = text.bytes().take(MAX_REPLACEMENT_BYTES + 1);
                    if bytes.position(|byte| byte == 0).is_none()
                        && text.len() > MAX_REPLACEMENT_BYTES
                    {
                        return Err("a replacement is longer than 256 bytes");
                    }
                }
                waiting.push(next);
            }
        }
        Ok(())
    }

    /// The longest string of the table that is a prefix of `text`: its length and its replacement.
    pub(super) fn longest(&self, text: &[u8]) -> Option<(usize, &str)> {
        let mut at = offset(*self.units.first()?);
        let mut found = None;
        for (byte, len) in text.iter().zip(1..=MAX_REPLACED_BYTES) {
            at ^= usize::from(*byte);
            let unit = *self.units.get(at)?;
            if *byte == 0 || unit & (1 << 31 | 0xff) != u32::from(*byte) {
                break;
            }
            at ^= offset(unit);
            if unit >> 8 & 1 == 1 {
                found = Some((len, self.units.get(at)? & ((1 << 31) - 1)));
            }
        }
        let (len, value) = found?;
        let text = self.replacements.get(value as usize..)?;
        Some((len, text.split('\0').next().unwrap_or(text)))
    }
}
