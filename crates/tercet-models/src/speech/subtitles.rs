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
