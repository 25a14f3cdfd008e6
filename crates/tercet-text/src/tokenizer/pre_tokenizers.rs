//! The table of pre-tokenizers, which GGUF files name in `tokenizer.ggml.pre`.
//!
//! An entry has the regular expressions that split a text into words before BPE merges. An entry
//! also says whether a word that is itself a token skips the merges (`ignore_merges`), and whether
//! texts start with BOS if the file does not specify it.

use tokenizers::normalizers::NFC;
use tokenizers::pre_tokenizers::PreTokenizerWrapper;
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::pre_tokenizers::sequence::Sequence;
use tokenizers::pre_tokenizers::split::{Split, SplitPattern};
use tokenizers::{NormalizerWrapper, SplitDelimiterBehavior};

use super::TokenizerError;

/// The word splitting of a family of byte-level BPE tokenizers.
///
/// ```
/// use tercet_text::internals::{PRE_TOKENIZERS, PreTokenizer};
/// let is_gpt2 = |entry: &&PreTokenizer| entry.names.contains(&"gpt-2");
/// assert_eq!(PRE_TOKENIZERS.iter().filter(is_gpt2).count(), 1);
/// ```
#[derive(Clone, Copy)]
pub struct PreTokenizer {
    /// The names in GGUF files.
    pub names: &'static [&'static str],
    /// The patterns, applied one after the other; matches and the text between them are both kept.
    splits: &'static [&'static str],
    /// Whether the text is normalized to Unicode NFC before splitting.
    nfc: bool,
    pub(super) ignore_merges: bool,
    pub(super) add_bos: bool,
}

/// The settings that most pre-tokenizers share.
const PLAIN: PreTokenizer = PreTokenizer {
    names: &[],
    splits: &[],
    nfc: false,
    ignore_merges: false,
    add_bos: false,
};

pub(super) const GPT2: &str =
    r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+";
/// GPT-4's pattern, with digits in groups of three.
const LLAMA3: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
/// The pattern of GPT-4 with single digits.
pub const QWEN2: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const QWEN35: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
/// GPT-4o's pattern: words also end before capital letters.
const GPT4O: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const TEKKEN: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";
/// GPT-4o's pattern with separate runs of Han characters.
const KIMI: &str = r"[\p{Han}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
/// Latin, Greek, Cyrillic and other letters that have capitals.
const DEEPSEEK_LETTERS: &str = r"\s?[A-Za-z\x{B5}\x{C0}-\x{D6}\x{D8}-\x{F6}\x{F8}-\x{1BA}\x{1BC}-\x{1BF}\x{1C4}-\x{293}\x{295}-\x{2AF}\x{370}-\x{373}\x{376}\x{377}\x{37B}-\x{37D}\x{37F}\x{386}\x{388}-\x{38A}\x{38C}\x{38E}-\x{3A1}\x{3A3}-\x{3F5}\x{3F7}-\x{481}\x{48A}-\x{52F}\x{531}-\x{556}\x{10A0}-\x{10C5}\x{13A0}-\x{13F5}\x{13F8}-\x{13FD}\x{1C90}-\x{1CBA}\x{1CBD}-\x{1CBF}\x{1D00}-\x{1D2B}\x{1D6B}-\x{1D77}\x{1D79}-\x{1D9A}\x{1E00}-\x{1F15}\x{1F18}-\x{1F1D}\x{1F20}-\x{1F45}\x{1F48}-\x{1F4D}\x{1F50}-\x{1F57}\x{1F59}\x{1F5B}\x{1F5D}\x{1F5F}-\x{1F7D}\x{1F80}-\x{1FB4}\x{1FB6}-\x{1FBC}\x{1FBE}\x{1FC2}-\x{1FC4}\x{1FC6}-\x{1FCC}\x{1FD0}-\x{1FD3}\x{1FD6}-\x{1FDB}\x{1FE0}-\x{1FEC}\x{1FF2}-\x{1FF4}\x{1FF6}-\x{1FFC}\x{2102}\x{2107}\x{210A}-\x{2113}\x{2115}\x{2119}-\x{211D}\x{2124}\x{2126}\x{2128}\x{212A}-\x{212D}\x{212F}-\x{2134}\x{2139}\x{213C}-\x{213F}\x{2145}-\x{2149}\x{214E}\x{2183}\x{2184}\x{2C00}-\x{2C7B}\x{2C7E}-\x{2CE4}\x{2CEB}-\x{2CEE}\x{2CF2}\x{2CF3}\x{A640}-\x{A66D}\x{A680}-\x{A69B}\x{A722}-\x{A76F}\x{A771}-\x{A787}\x{A78B}-\x{A78E}\x{AB70}-\x{ABBF}\x{FB00}-\x{FB06}\x{FB13}-\x{FB17}\x{FF21}-\x{FF3A}\x{FF41}-\x{FF5A}\x{10400}-\x{1044F}\x{104B0}-\x{104D3}\x{104D8}-\x{104FB}\x{10C80}-\x{10CB2}\x{10CC0}-\x{10CF2}\x{118A0}-\x{118DF}\x{1E900}-\x{1E943}]+";
const HAN_AND_HANGUL: &str = r"[一-龥ࠀ-一가-퟿]+";
const HAN_AND_KANA: &str = r"[一-龥぀-ゟ゠-ヿ]+";
const DEEPSEEK_V3: &str = r##"[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"##;
/// Words between spaces and punctuation of several scripts.
const BLOOM: &str = r" ?[^(\s|.,!?…。，、।۔،)]+";

/// All pre-tokenizers.
pub const TABLE: &[PreTokenizer] = &[
    PreTokenizer {
        names: &[
            "gpt-2",
            "gpt2",
            "mpt",
            "olmo",
            "jais",
            "phi-2",
            "jina-es",
            "jina-de",
            "jina-v2-es",
            "jina-v2-de",
            "jina-v1-en",
            "jina-v2-code",
            "roberta-bpe",
            "gigachat",
            "a.x-4.0",
            "mellum",
            "modern-bert",
            "exaone4",
            "trillion",
            "granite-docling",
        ],
        splits: &[GPT2],
        ..PLAIN
    },
    PreTokenizer {
        names: &[
            "llama-bpe",
            "llama3",
            "llama-v3",
            "falcon3",
            "falcon-h1",
            "pixtral",
            "midm-2.0",
            "lfm2",
            "jina-v5-nano",
        ],
        splits: &[LLAMA3],
        ignore_merges: true,
        add_bos: true,
        ..PLAIN
    },
    PreTokenizer {
        names: &["dbrx", "smaug-bpe", "chatglm-bpe", "glm4"],
        splits: &[LLAMA3],
        ..PLAIN
    },
    PreTokenizer {
        names: &["minicpm5"],
        splits: &[
            r"\p{N}{1,3}",
            r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}+| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
        ],
        ignore_merges: true,
        ..PLAIN
    },
    PreTokenizer {
        names: &["qwen2", "deepseek-r1-qwen", "kormo", "f2llmv2", "megrez"],
        splits: &[QWEN2],
        nfc: true,
        ..PLAIN
    },
    PreTokenizer {
        names: &["qwen35"],
        splits: &[QWEN35],
        nfc: true,
        ..PLAIN
    },
    PreTokenizer {
        names: &["stablelm2", "hunyuan", "solar-open", "grok-2"],
        splits: &[QWEN2],
        ..PLAIN
    },
    PreTokenizer {
        names: &["laguna"],
        splits: &[r"[^\n]+|[\n]+", QWEN2],
        ..PLAIN
    },
    PreTokenizer {
        names: &[
            "starcoder",
            "refact",
            "command-r",
            "smollm",
            "codeshell",
            "exaone",
            "minerva-7b",
            "mellum2",
        ],
        splits: &[r"\p{N}", GPT2],
        ..PLAIN
    },
    PreTokenizer {
        names: &["deepseek-llm"],
        splits: &[
            r"[\r\n]",
            DEEPSEEK_LETTERS,
            r"\s?[!-/:-~！-／：-～‘-‟　-。]+",
            r"\s+$",
            HAN_AND_HANGUL,
            r"\p{N}",
        ],
        ..PLAIN
    },
    PreTokenizer {
        names: &["deepseek-coder"],
        splits: &[
            r"[\r\n]",
            r"\s?\p{L}+",
            r"\s?\p{P}+",
            HAN_AND_HANGUL,
            r"\p{N}",
        ],
        ..PLAIN
    },
    PreTokenizer {
        names: &["deepseek-v3", "hunyuan-dense", "joyai-llm", "hy_v4"],
        splits: &[r"\p{N}{1,3}", HAN_AND_KANA, DEEPSEEK_V3],
        ..PLAIN
    },
    PreTokenizer {
        names: &["falcon"],
        splits: &[r"[\p{P}\$\+<=>\^~\|`]+", GPT2, r"[0-9][0-9][0-9]"],
        ..PLAIN
    },
    PreTokenizer {
        names: &["bloom", "poro-chat", "gpt3-finnish"],
        splits: &[BLOOM],
        ..PLAIN
    },
    PreTokenizer {
        names: &["viking"],
        splits: &[BLOOM, r"\p{N}"],
        ..PLAIN
    },
    PreTokenizer {
        names: &["tekken"],
        splits: &[TEKKEN],
        ignore_merges: true,
        add_bos: true,
        ..PLAIN
    },
    PreTokenizer {
        names: &["gpt-4o", "llama4", "kanana2", "talkie", "minimax-m2"],
        splits: &[GPT4O],
        ..PLAIN
    },
    PreTokenizer {
        names: &["kimi-k2"],
        splits: &[KIMI],
        ..PLAIN
    },
    PreTokenizer {
        names: &["chameleon"],
        splits: &[
            r"<sentinel:[0-9]+>",
            r"(IMGIMG)((A|B|C|D|E|F|G|H|I){1,4})Z",
            r"([\t\n]|    |  )",
            r"\p{N}",
            r"[\p{P}!-/:-@\[-`{-~]",
            GPT2,
        ],
        add_bos: true,
        ..PLAIN
    },
    PreTokenizer {
        names: &["bailingmoe", "bailingmoe2", "llada-moe"],
        splits: &[
            r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+",
        ],
        ..PLAIN
    },
    PreTokenizer {
        names: &["seed-coder"],
        splits: &[
            r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1}| ?[^\s\p{L}\p{N}\r\n]+|\s*[\r\n]+|\s+(?!\S)|\s+",
        ],
        ..PLAIN
    },
    PreTokenizer {
        names: &["exaone-moe"],
        splits: &[
            r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?(?:\p{L}\p{M}*(?: \p{L}\p{M}*)*)+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]?|\s*[\r\n]|\s+(?!\S)|\s+",
        ],
        ..PLAIN
    },
    PreTokenizer {
        names: &["superbpe"],
        splits: &[r"\p{N}+", THREES_FROM_THE_RIGHT],
        ..PLAIN
    },
    PreTokenizer {
        names: &["afmoe"],
        splits: &[
            THREES_FROM_THE_RIGHT,
            r"[一-鿿㐀-䶿\x{F900}-\x{FAFF}぀-ゟ゠-ヿ･-ﾟ⼀-⿟เ-๿຀-໿ក-៿က-႟ꩠ-ꩿꧠ-꧿가-힯ᄀ-ᇿ]+",
            DEEPSEEK_V3,
        ],
        ..PLAIN
    },
    PreTokenizer {
        names: &["tiny_aya", "cohere2moe"],
        splits: &[r"\d{1,3}(?=(?:\d{3})*\b)", GPT4O],
        ..PLAIN
    },
    // The default for files without a name: separate punctuation, digits in groups of three.
    PreTokenizer {
        names: &["default"],
        splits: &[r"[\p{P}\$\+<=>\^~\|]+", GPT2, r"\p{N}+", r"[0-9][0-9][0-9]"],
        ..PLAIN
    },
];

/// The first one to three digits of a number, if groups of three follow them.
const THREES_FROM_THE_RIGHT: &str = r"\d{1,3}(?=(?:\d{3})*(?!\d))";

/// The first table entry with these patterns and settings; its name.
pub(super) fn named(splits: &[&str], nfc: bool, ignore_merges: bool) -> Option<&'static str> {
    let same = |entry: &&PreTokenizer| {
        entry.splits == splits && entry.nfc == nfc && entry.ignore_merges == ignore_merges
    };
    TABLE.iter().find(same)?.names.first().copied()
}

/// The entry called `name`.
pub(super) fn find(name: &str) -> Result<&'static PreTokenizer, TokenizerError> {
    TABLE
        .iter()
        .find(|entry| entry.names.contains(&name))
        .ok_or_else(|| TokenizerError::UnsupportedPreTokenizer {
            found: tercet_files::clip(name),
            supported: TABLE
                .iter()
                .flat_map(|entry| entry.names)
                .copied()
                .collect::<Vec<_>>()
                .join(", "),
        })
}

impl PreTokenizer {
    pub(super) fn normalizer(&self) -> Option<NormalizerWrapper> {
        self.nfc.then_some(NormalizerWrapper::NFC(NFC))
    }

    /// The pre-tokenizer that splits by the patterns and then spells the bytes of each word.
    ///
    /// # Errors
    /// The pattern that does not compile.
    pub fn build(&self) -> Result<Sequence, TokenizerError> {
        let mut steps = Vec::with_capacity(self.splits.len() + 1);
        for pattern in self.splits {
            let split = Split::new(
                SplitPattern::Regex((*pattern).to_owned()),
                SplitDelimiterBehavior::Isolated,
                false,
            )
            .map_err(TokenizerError::failed("compiling the pre-tokenizer"))?;
            steps.push(PreTokenizerWrapper::Split(split));
        }
        steps.push(PreTokenizerWrapper::ByteLevel(ByteLevel::new(
            false, true, false,
        )));
        Ok(Sequence::new(steps))
    }
}
