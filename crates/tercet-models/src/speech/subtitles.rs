//! Transcripts as subtitle files and as lines with times.

use std::fmt::Write;

use super::{Transcript, TranscriptSegment};

impl Transcript {
    /// SubRip (SRT) subtitles; segments without text are omitted.
    pub fn srt(&self) -> String {
        subtitles(&self.segments, ',')
    }

    /// WebVTT subtitles; segments without text are omitted.
    pub fn vtt(&self) -> String {
        format!("WEBVTT\n\n{}", subtitles(&self.segments, '.'))
    }

    /// One line `[00:00:00.000 --> 00:00:02.500] text` per segment.
    pub fn lines(&self) -> String {
        let line = |s: &TranscriptSegment| {
            let (start, end) = (time(s.start, '.'), time(s.end, '.'));
            format!("[{start} --> {end}] {}\n", on_one_line(&s.text))
        };
        self.segments.iter().map(line).collect()
    }
}

/// Numbered subtitles; segments without text are omitted.
fn subtitles(segments: &[TranscriptSegment], point: char) -> String {
    let mut all = String::new();
    let spoken = segments.iter().filter(|s| !s.text.trim().is_empty());
    for (i, s) in spoken.enumerate() {
        let (start, end) = (time(s.start, point), time(s.end, point));
        // A line break or `-->` in the text would be parsed as the end of the subtitle or as a time
        // line.
        let text = on_one_line(&s.text).replace("-->", "->");
        // Writing to a string does not fail.
        let _ = writeln!(all, "{}\n{start} --> {end}\n{text}\n", i + 1);
    }
    all
}

fn on_one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Time in the format `01:02:03.456`.
fn time(seconds: f64, point: char) -> String {
    let all = (seconds.max(0.0) * 1000.0).round() as u64;
    let (s, ms) = (all / 1000, all % 1000);
    let (h, m, s) = (s / 3600, s / 60 % 60, s % 60);
    format!("{h:02}:{m:02}:{s:02}{point}{ms:03}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn segment(start: f64, end: f64, text: &str) -> TranscriptSegment {
        TranscriptSegment {
            start,
            end,
            text: text.to_string(),
            tokens: Vec::new(),
            temperature: 0.0,
            log_probability: 0.0,
            compression: 1.0,
            no_speech: 0.0,
        }
    }

    #[test]
    fn subtitles_have_numbers_and_times() {
        let mut transcript = Transcript {
            segments: vec![
                segment(0.0, 2.5, " Hello\n\nthere."),
                segment(2.5, 3.0, " "),
                segment(3_661.02, 3_662.999_9, " 1 --> 2"),
            ],
            ..Transcript::default()
        };
        assert_eq!(
            transcript.srt(),
            "1\n00:00:00,000 --> 00:00:02,500\nHello there.\n\n2\n01:01:01,020 --> 01:01:03,000\n1 -> 2\n\n"
        );
        transcript.segments.truncate(1);
        assert_eq!(
            transcript.vtt(),
            "WEBVTT\n\n1\n00:00:00.000 --> 00:00:02.500\nHello there.\n\n"
        );
        assert_eq!(
            transcript.lines(),
            "[00:00:00.000 --> 00:00:02.500] Hello there.\n"
        );
    }
}
