//! `transcribe` on small speech recognition models.

use crate::common::{Scratch, bad, data, good, json};
use serde_json::Value;

const A: &str = "speech/whisper-a";
const B: &str = "speech/whisper-b";
const C: &str = "speech/whisper-c";

/// Text and segments of the first reference run with these options.
fn reference(model: &str, options: &Value) -> Value {
    let path = format!("{}/reference.json", data(model));
    let json: Value = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
    let mut runs = json["runs"].as_array().unwrap().iter();
    runs.find(|run| run["options"] == *options).unwrap().clone()
}

/// A 16-bit WAV file.
fn wav(rate: u32, channels: u16, samples: &[i16]) -> Vec<u8> {
    let bytes: Vec<u8> = samples.iter().flat_map(|x| x.to_le_bytes()).collect();
    let each = u32::from(channels) * 2;
    let parts: [&[u8]; 13] = [
        b"RIFF",
        &(36 + bytes.len() as u32).to_le_bytes(),
        b"WAVEfmt ",
        &16u32.to_le_bytes(),
        &1u16.to_le_bytes(),
        &channels.to_le_bytes(),
        &rate.to_le_bytes(),
        &rate.wrapping_mul(each).to_le_bytes(),
        &(each as u16).to_le_bytes(),
        &16u16.to_le_bytes(),
        b"data",
        &(bytes.len() as u32).to_le_bytes(),
        &bytes,
    ];
    parts.concat()
}

#[test]
fn transcribe_writes_what_generate_does() {
    let audio = data("speech/speech.flac");
    let of = |model: &str, more: &[&str]| -> String {
        let model = data(model);
        let args = ["transcribe", "-m", &model, &audio, "--no-fallback"];
        good(&[&args[..], more].concat()).out
    };
    let want = reference(C, &serde_json::json!({}));
    assert_eq!(of(C, &[]).trim_end(), want["text"].as_str().unwrap().trim());
    let translated = serde_json::json!({"language": "de", "task": "translate"});
    let want = reference(B, &translated);
    let got = of(B, &["--language", "de", "--task", "translate"]);
    assert_eq!(got.trim_end(), want["text"].as_str().unwrap().trim());

    let want = reference(
        B,
        &serde_json::json!({"language": "fr", "return_timestamps": true}),
    );
    let model = data(B);
    let v = json(&[
        "transcribe",
        "-m",
        &model,
        &audio,
        "--no-fallback",
        "--language",
        "fr",
        "--timestamps",
        "--format",
        "json",
    ]);
    assert_eq!(v["language"], "fr");
    assert_eq!(v["text"], want["text"]);
    let segments = v["segments"].as_array().unwrap();
    let wanted = want["segments"].as_array().unwrap();
    assert_eq!(segments.len(), wanted.len());
    for (got, want) in segments.iter().zip(wanted) {
        assert_eq!(got["tokens"], want["tokens"]);
        assert!((got["start"].as_f64().unwrap() - want["start"].as_f64().unwrap()).abs() < 0.006);
    }
    let srt = of(B, &["--language", "fr", "--format", "srt"]);
    assert!(srt.starts_with("1\n00:00:0"), "{srt}");
    let vtt = of(B, &["--language", "fr", "--format", "vtt"]);
    assert!(vtt.starts_with("WEBVTT\n\n1\n00:00:0"), "{vtt}");
    assert_eq!(srt.matches(" --> ").count(), vtt.matches(" --> ").count());
    let lines = of(B, &["--language", "fr", "--timestamps"]);
    assert_eq!(lines.lines().count(), wanted.len());
}

#[test]
fn transcribe_reads_files_of_other_rates() {
    let scratch = Scratch::new("transcribe-rates");
    let model = data(B);
    let of = |audio: &str| json(&["transcribe", "-m", &model, audio, "--format", "json"]);
    let mp3 = of(&data("speech/stereo.mp3"));
    let seconds = mp3["duration"].as_f64().unwrap();
    assert!((0.5..2.0).contains(&seconds), "{seconds}");
    // The same tone at two sample rates, on one channel only.
    let tone = |rate: u32| -> Vec<i16> {
        let at = |i: u32| (f64::from(i) * 2764.6 / f64::from(rate)).sin() * 12_000.0;
        (0..rate).flat_map(|i| [at(i) as i16, 0]).collect()
    };
    let [low, high] = [16_000, 44_100].map(|rate| {
        let file = scratch.file(&format!("{rate}.wav"), wav(rate, 2, &tone(rate)));
        of(&file)
    });
    assert_eq!(low["duration"], high["duration"]);
    assert!(!low["segments"].as_array().unwrap().is_empty());
}

#[test]
fn what_transcribe_cannot_do_is_said() {
    let scratch = Scratch::new("transcribe-refusals");
    let (model, english) = (data(A), data(C));
    let audio = data("speech/speech.flac");
    let of = |file: &str, parts: &[&str]| bad(&["transcribe", "-m", &english, file], 1, parts);
    of("/nowhere/a.wav", &["/nowhere/a.wav"]);
    of(
        &scratch.file("empty.wav", b""),
        &["empty.wav", "no samples"],
    );
    of(
        &scratch.file("silent.wav", wav(16_000, 1, &[])),
        &["silent.wav", "no samples"],
    );
    of(
        &scratch.file("text.mp3", "These are words, no sounds. ".repeat(99)),
        &["text.mp3", "MP3"],
    );
    of(
        &scratch.file("short.wav", &wav(16_000, 1, &[0; 9])[..20]),
        &["short.wav"],
    );
    of(
        &scratch.file("fast.wav", wav(4_000_000, 1, &[0; 99])),
        &["4000000 Hz", "192000"],
    );
    let flac = std::fs::read(&audio).unwrap();
    of(&scratch.file("cut.flac", &flac[..60]), &["cut.flac"]);
    let with = |model: &str, more: &[&str], parts: &[&str]| {
        bad(
            &[&["transcribe", "-m", model, &audio][..], more].concat(),
            1,
            parts,
        );
    };
    with(&model, &["--language", "xx"], &["`xx`", "de, en"]);
    with(&english, &["--language", "en"], &["English alone"]);
    let other = ["a text encoder", "`tercet classify`"];
    with(&data("encoders/bert-a"), &[], &other);
    bad(&["embed", "-m", &model, "a"], 1, &["`tercet transcribe`"]);
}
