//! Compares the results of a page with the references of the suites.

use std::fs;
use std::path::Path;
use std::process::Command;

use serde::Deserialize;
use serde_json::{Value as Json, json};

use crate::error::{self, XtaskError};
use crate::process;

const TEXTS: &str = "tests/data/tiny-rust-llama/reference.json";
const SENTENCES: &str = "tests/data/minilm/reference.json";
const EMBEDDINGS: &str = "tests/data/minilm/embeddings_f64.npy";
/// Number of greedy tokens that must match F32 with Q8_0 weights, as in the suite `models`.
const GREEDY_PREFIX_Q8: usize = 24;
/// Maximum difference between F32 and F64 embeddings, as in the suite `models`.
const EMBEDDING_ABS: f64 = 2e-5;
/// Numbers whose square roots the loop of the page computes.
const ROOTS: [f64; 5] = [2.0, 0.0, 1e6, -1.0, 0.25];
/// Maximum relative error of a square root.
const ROOT_ERROR: f64 = 1e-5;
/// A number for which the loop exceeds its iteration limit, and a part of the expected error.
const REFUSED: (f64, &str) = (1e30, "40");

/// The coverage of a page test.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PageCoverage {
    /// All tests.
    Whole,
    /// The loop and one prompt, because a software GPU takes seconds to compile a kernel.
    Part,
}

impl PageCoverage {
    /// The number of prompts that a page test runs.
    fn texts(self, all: usize) -> usize {
        match self {
            PageCoverage::Whole => all,
            PageCoverage::Part => all.min(1),
        }
    }

    /// The number of sentences that a page test embeds.
    fn sentences(self, all: usize) -> usize {
        match self {
            PageCoverage::Whole => all,
            PageCoverage::Part => 0,
        }
    }
}

/// The inputs of a page test and the expected results.
pub(super) struct PageReferences {
    texts: Vec<ReferenceText>,
    sentences: Vec<String>,
    /// The embedding of each sentence.
    embeddings: Vec<Vec<f64>>,
}

/// A prompt with the tokens that follow it.
struct ReferenceText {
    prompt: String,
    tokens: Vec<u64>,
    /// The text that the command generates after the prompt, once it has run.
    text: Option<String>,
}

/// The result that a page posts.
#[derive(Deserialize)]
struct PageResult {
    error: Option<String>,
    #[serde(default)]
    device: String,
    #[serde(default)]
    seconds: serde_json::Map<String, Json>,
    #[serde(default)]
    roots: Vec<[f64; 3]>,
    #[serde(default)]
    refused: String,
    #[serde(default)]
    texts: Vec<PageCompletion>,
    #[serde(default)]
    embeddings: Vec<Vec<f64>>,
}

#[derive(Deserialize)]
struct PageCompletion {
    tokens: Vec<u64>,
    text: String,
}

fn read(path: &str) -> Result<Vec<u8>, XtaskError> {
    let path = process::root().join(path);
    fs::read(&path).map_err(error::file("read", &path))
}

fn read_json(path: &str) -> Result<Json, XtaskError> {
    serde_json::from_slice(&read(path)?).map_err(|source| XtaskError::Json {
        path: process::root().join(path),
        source,
    })
}

fn ids(json: &Json) -> Vec<u64> {
    let all = json.as_array().into_iter().flatten();
    all.filter_map(Json::as_u64).collect()
}

/// The rows of an F64 array in NumPy's format.
fn rows_f64(npy: &[u8], rows: usize) -> Option<Vec<Vec<f64>>> {
    let header = usize::from(u16::from_le_bytes(npy.get(8..10)?.try_into().ok()?));
    let data = npy.strip_prefix(b"\x93NUMPY\x01\x00")?.get(2 + header..)?;
    let numbers: Vec<f64> = data
        .chunks_exact(8)
        .filter_map(|bytes| Some(f64::from_le_bytes(bytes.try_into().ok()?)))
        .collect();
    let width = numbers.len() / rows;
    Some(numbers.chunks_exact(width).map(<[f64]>::to_vec).collect())
}

impl PageReferences {
    pub(super) fn read() -> Result<PageReferences, XtaskError> {
        let texts = read_json(TEXTS)?;
        let texts = texts.as_object().into_iter().flat_map(|all| all.values());
        let texts = texts.map(|own| {
            let before = ids(&own["ids"]).len();
            let tokens = ids(&own["greedy"]).into_iter().skip(before);
            ReferenceText {
                prompt: own["prompt"].as_str().unwrap_or_default().to_string(),
                tokens: tokens.take(GREEDY_PREFIX_Q8).collect(),
                text: None,
            }
        });
        let json = read_json(SENTENCES)?;
        let sentences = json["sentences"].as_array().into_iter().flatten();
        let sentences: Vec<String> = sentences
            .filter_map(|s| Some(s.as_str()?.to_string()))
            .collect();
        let embeddings = rows_f64(&read(EMBEDDINGS)?, sentences.len().max(1));
        Ok(PageReferences {
            texts: texts.collect(),
            sentences,
            embeddings: embeddings.unwrap_or_default(),
        })
    }

    /// Runs the `tercet` command with this model to get the reference texts.
    pub(super) fn run_reference(&mut self, command: &Path, model: &Path) -> Result<(), XtaskError> {
        for text in &mut self.texts {
            let mut generate = Command::new(command);
            generate.args(["generate", "--device", "cpu", "-p", &text.prompt]);
            generate.args(["-n", &GREEDY_PREFIX_Q8.to_string(), "-m"]);
            generate.arg(model);
            let written = process::output(&mut generate)?;
            let written = String::from_utf8_lossy(&written).into_owned();
            // The command ends its output with a line break.
            let written = written.strip_suffix('\n').unwrap_or(&written);
            let behind = written.strip_prefix(text.prompt.as_str());
            text.text = Some(behind.unwrap_or(written).to_string());
        }
        Ok(())
    }

    /// The inputs for a page as JSON.
    pub(super) fn cases(&self, share: PageCoverage) -> String {
        let text =
            |text: &ReferenceText| json!({ "prompt": text.prompt, "most": GREEDY_PREFIX_Q8 });
        json!({
            "roots": ROOTS,
            "refused": REFUSED.0,
            "texts": self.texts[..share.texts(self.texts.len())].iter().map(text).collect::<Vec<Json>>(),
            "sentences": self.sentences[..share.sentences(self.sentences.len())],
        })
        .to_string()
    }

    /// The differences between a page's results on this device and the references; also prints the
    /// measured times.
    pub(super) fn judge(&self, device: &str, share: PageCoverage, answer: &str) -> Vec<String> {
        let answer: PageResult = match serde_json::from_str(answer) {
            Ok(answer) => answer,
            Err(e) => return vec![format!("no answer: {e}")],
        };
        if let Some(error) = answer.error {
            return vec![error];
        }
        let took = answer.seconds.iter().map(|(what, s)| {
            let seconds = s.as_f64().unwrap_or_default();
            format!("{what} {seconds:.1} s")
        });
        println!(
            "{}: {}",
            answer.device,
            took.collect::<Vec<String>>().join(", ")
        );
        let mut problems = Vec::new();
        if !answer.device.to_lowercase().starts_with(device) {
            problems.push(format!("it ran on {}", answer.device));
        }
        self.judge_roots(&answer, &mut problems);
        if answer.texts.len() != share.texts(self.texts.len()) {
            problems.push(format!("{} texts", answer.texts.len()));
        }
        for (got, want) in answer.texts.iter().zip(&self.texts) {
            if got.tokens != want.tokens || got.text.is_empty() {
                let (prompt, want) = (&want.prompt, &want.tokens);
                problems.push(format!(
                    "{prompt:?}: found {:?}, expected {want:?}",
                    got.tokens
                ));
            }
            if let Some(text) = want.text.as_ref().filter(|text| **text != got.text) {
                let prompt = &want.prompt;
                problems.push(format!(
                    "{prompt:?}: {:?}, the command writes {text:?}",
                    got.text
                ));
            }
        }
        if answer.embeddings.len() != share.sentences(self.sentences.len())
            || self.embeddings.is_empty()
        {
            problems.push(format!("{} embeddings", answer.embeddings.len()));
        }
        let of = answer.embeddings.iter().zip(&self.embeddings);
        for (sentence, (got, want)) in self.sentences.iter().zip(of) {
            let apart = got.iter().zip(want).map(|(a, b)| (a - b).abs());
            let worst = apart.fold(0.0, f64::max);
            // A NaN difference is a failure too.
            if got.len() != want.len() || worst.is_nan() || worst > EMBEDDING_ABS {
                problems.push(format!("{sentence:?}: {worst} off, {} elements", got.len()));
            }
        }
        problems
    }

    fn judge_roots(&self, answer: &PageResult, problems: &mut Vec<String>) {
        if answer.roots.len() != ROOTS.len() {
            problems.push(format!("{} roots", answer.roots.len()));
        }
        let mut sum = 0.0;
        for (&[root, iterations, total], x) in answer.roots.iter().zip(ROOTS) {
            sum += iterations;
            let want = x.max(0.0).sqrt();
            let near = (root - want).abs() <= ROOT_ERROR * want;
            if !near || (iterations > 0.0) != (x > 0.0) || total != sum {
                let got = format!("{root} in {iterations} iterations, {total} in total");
                problems.push(format!(
                    "the root of {x}: expected {want}, {sum} in total; found {got}"
                ));
            }
        }
        if !answer.refused.contains(REFUSED.1) {
            problems.push(format!("the root of {}: {}", REFUSED.0, answer.refused));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(references: &PageReferences) -> Json {
        let texts = references.texts.iter();
        let texts: Vec<Json> = texts
            .map(|t| json!({ "tokens": t.tokens, "text": "text" }))
            .collect();
        let roots = ROOTS.map(|x: f64| [x.max(0.0).sqrt(), f64::from(x > 0.0), 0.0]);
        let mut sum = 0.0;
        let roots = roots.map(|[root, iterations, _]| {
            sum += iterations;
            [root, iterations, sum]
        });
        json!({
            "device": "CPU", "seconds": {}, "roots": roots, "refused": "40 iterations",
            "texts": texts, "embeddings": references.embeddings,
        })
    }

    #[test]
    fn what_differs_is_found() -> Result<(), Box<dyn std::error::Error>> {
        let references = PageReferences::read()?;
        assert_eq!(
            (references.texts.len(), references.sentences.len()),
            (4, 20)
        );
        assert_eq!(references.embeddings[19].len(), 384);
        assert_eq!(references.texts[0].tokens.len(), GREEDY_PREFIX_Q8);
        let right = answer(&references);
        let judge = |device: &str, answer: &Json| {
            references.judge(device, PageCoverage::Whole, &answer.to_string())
        };
        assert_eq!(judge("cpu", &right), [""; 0]);
        assert_eq!(judge("webgpu", &right).len(), 1);
        let changes: [fn(&mut Json); 6] = [
            |a| a["texts"][1]["tokens"][23] = json!(2047),
            |a| a["embeddings"][3][100] = json!(2.0),
            |a| a["embeddings"][3][100] = json!(null),
            |a| a["roots"][0][2] = json!(7.0),
            |a| a["refused"] = json!("3,40".replace("40", "")),
            |a| a["error"] = json!("lost"),
        ];
        for change in changes {
            let mut wrong = right.clone();
            change(&mut wrong);
            assert_eq!(judge("cpu", &wrong).len(), 1, "{wrong}");
        }
        let mut part = right.clone();
        part["texts"] = json!([right["texts"][0]]);
        assert!(!judge("cpu", &part).is_empty());
        part["embeddings"] = json!([]);
        let part = references.judge("cpu", PageCoverage::Part, &part.to_string());
        assert_eq!(part, [""; 0]);
        let mut told = PageReferences::read()?;
        told.texts[0].text = Some("another".to_string());
        assert_eq!(
            told.judge("cpu", PageCoverage::Whole, &right.to_string())
                .len(),
            1
        );
        let mut none = right.clone();
        none["embeddings"] = json!([]);
        assert_eq!(judge("cpu", &none).len(), 1);
        Ok(())
    }
}
