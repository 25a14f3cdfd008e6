//! Names of quantizations in file names.

/// Quantizations in the order in which they are chosen if a name has none. Q4_K_M is the usual
/// compromise of size and quality; others of four bits and more follow by their distance from it.
const PREFERRED: [&str; 17] = [
    "Q4_K_M", "Q4_K_L", "Q4_K_XL", "Q4_K_S", "Q4_K", "IQ4_NL", "IQ4_XS", "MXFP4", "Q4_1", "Q4_0",
    "Q4", "Q5_K_M", "Q5_K_S", "Q5_0", "Q6_K", "Q8_0", "Q8",
];

/// The quantization that the path of a GGUF file names, in capitals: of `x/m-UD-q4_k_m.gguf` it is
/// `UD-Q4_K_M`.
pub(crate) fn quant_of(path: &str) -> Option<String> {
    let (folder, file) = match path.rsplit_once('/') {
        Some((folder, file)) => (folder, file),
        None => ("", path),
    };
    let stem = file.strip_suffix(".gguf").unwrap_or(file);
    let stem = split_part(file).map_or(stem, |part| part.stem);
    let of_folder = || folder.rsplit('/').next().and_then(quant_in);
    quant_in(stem).or_else(of_folder)
}

/// The last quantization in a name whose parts are separated by `-` and `.`.
fn quant_in(name: &str) -> Option<String> {
    let upper = name.to_ascii_uppercase();
    let words: Vec<&str> = upper.split(['-', '.']).collect();
    words.iter().enumerate().rev().find_map(|(at, word)| {
        let starts = word.match_indices('_').map(|(at, _)| at + 1);
        let mut ends = std::iter::once(0).chain(starts).map(|start| &word[start..]);
        let quant = ends.find(|end| is_quant(end))?;
        let is_dynamic = at > 0 && words[at - 1] == "UD" && quant.len() == word.len();
        Some(match is_dynamic {
            true => format!("UD-{quant}"),
            false => quant.to_string(),
        })
    })
}

/// Whether a word in capitals is a quantization or a float type.
fn is_quant(word: &str) -> bool {
    if matches!(word, "F16" | "BF16" | "F32" | "FP16" | "FP32") {
        return true;
    }
    if word.starts_with("MXFP4") || word.starts_with("NVFP4") {
        return true;
    }
    let bits = ["IQ", "TQ", "Q"]
        .iter()
        .find_map(|prefix| word.strip_prefix(prefix));
    let Some(bits) = bits else { return false };
    let mut rest = bits.chars();
    let is_bits = rest.next().is_some_and(|c| ('1'..='8').contains(&c));
    let rest = rest.as_str();
    is_bits && (rest.is_empty() || rest.starts_with('_'))
}

/// The place of a quantization in the order of preference; lower is better.
pub(crate) fn preference(quant: Option<&str>) -> Option<usize> {
    let (plain, is_dynamic) = match quant?.strip_prefix("UD-") {
        Some(plain) => (plain, true),
        None => (quant?, false),
    };
    let place = PREFERRED.iter().position(|own| plain == *own)?;
    Some(2 * place + usize::from(is_dynamic))
}

/// A part of a split GGUF file, `STEM-00001-of-00002.gguf`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SplitPart<'a> {
    pub(crate) stem: &'a str,
    pub(crate) number: usize,
    pub(crate) count: usize,
}

pub(crate) fn split_part(file: &str) -> Option<SplitPart<'_>> {
    let (head, count) = file.strip_suffix(".gguf")?.rsplit_once("-of-")?;
    let (stem, number) = head.rsplit_once('-')?;
    let parsed = |text: &str| {
        let digits = text.len() == 5 && text.bytes().all(|b| b.is_ascii_digit());
        digits.then(|| text.parse().ok()).flatten()
    };
    Some(SplitPart {
        stem,
        number: parsed(number)?,
        count: parsed(count)?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn file_names_have_quantizations() {
        for (path, quant) in [
            ("Qwen2.5-0.5B-Instruct-Q4_K_M.gguf", "Q4_K_M"),
            ("qwen2.5-0.5b-instruct-q4_k_m.gguf", "Q4_K_M"),
            ("model.i1-IQ3_XXS.gguf", "IQ3_XXS"),
            ("tinyllama-1.1b-chat-v1.0.Q8_0.gguf", "Q8_0"),
            ("Phi-3-mini-4k-instruct-q4.gguf", "Q4"),
            ("smollm2_Q6_K.gguf", "Q6_K"),
            ("m-UD-Q4_K_XL.gguf", "UD-Q4_K_XL"),
            ("UD-Q2_K_XL/m-UD-Q2_K_XL-00001-of-00003.gguf", "UD-Q2_K_XL"),
            ("BF16/m-00001-of-00002.gguf", "BF16"),
            ("gpt-oss-20b-mxfp4.gguf", "MXFP4"),
            ("m.F16.gguf", "F16"),
            ("ggml-model-f32.gguf", "F32"),
        ] {
            assert_eq!(quant_of(path).as_deref(), Some(quant), "{path}");
        }
        for path in [
            "model.gguf",
            "Qwen3-8B.gguf",
            "Q9_0.gguf",
            "x-Q.gguf",
            "a/b.gguf",
        ] {
            assert_eq!(quant_of(path), None, "{path}");
        }
    }

    #[test]
    fn parts_have_a_number_and_a_count() {
        let part = split_part("m-Q8_0-00002-of-00003.gguf").unwrap();
        assert_eq!((part.stem, part.number, part.count), ("m-Q8_0", 2, 3));
        for name in [
            "m.gguf",
            "m-2-of-3.gguf",
            "m-00002-of-3.gguf",
            "m-00002-of-00003.bin",
        ] {
            assert_eq!(split_part(name), None, "{name}");
        }
    }
}
