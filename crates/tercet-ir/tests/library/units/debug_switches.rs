//! Switches for the diagnosis of GPU runs.

use tercet_ir::{DebugSwitches, SwitchError};

#[test]
fn unknown_and_contradictory_names_are_refused() {
    for text in ["barriers", "barriers=some", "recording", "upload=1"] {
        let e = text.parse::<DebugSwitches>().unwrap_err();
        assert!(matches!(&e, SwitchError::UnknownDebug { given, .. } if given == text));
        assert!(e.to_string().contains("barriers=all, "), "{e}");
    }
    let both = "barriers=all,barriers=none".parse::<DebugSwitches>();
    assert!(matches!(both, Err(SwitchError::Conflict { .. })));
    let none: DebugSwitches = " , ".parse().unwrap();
    assert_eq!(none, DebugSwitches::default());
}

#[test]
fn upper_switches_go_before_lower_ones() {
    let upper: DebugSwitches = "barriers=all".parse().unwrap();
    let lower: DebugSwitches = "barriers=none,record".parse().unwrap();
    assert_eq!(upper.over(lower).to_string(), "barriers=all, record");
}
