use tercet_cli::internals::filter_line;

#[test]
fn lines_of_drivers_say_whose_they_are() {
    let mut seen = Vec::new();
    let mut of = |line: &str| filter_line(line, &mut seen);
    let no_windows = "error: XDG_RUNTIME_DIR is invalid or not set in the environment.\n";
    assert_eq!(of(no_windows), None);
    let lost = "MESA: error: no device\u{1b}[0m\n";
    let said = "note: message from a graphics driver: MESA: error: no device\\u{1b}[0m";
    assert_eq!(of(lost).as_deref(), Some(said));
    assert_eq!((of(lost), of("\n")), (None, None));
    let own = "note: the trial of many=matrices failed on this device";
    assert_eq!(of(own).as_deref(), Some(own));
}
