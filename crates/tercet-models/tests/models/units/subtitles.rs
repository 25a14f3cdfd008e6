use tercet_models::speech::{Transcript, TranscriptSegment};

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
