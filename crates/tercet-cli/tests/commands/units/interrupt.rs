use tercet_cli::internals::InterruptAction;

#[test]
fn presses_that_end_the_process() {
    let first = |action: InterruptAction| (1..9).find(|press| action.ends(*press));
    assert_eq!(first(InterruptAction::Stop), Some(2));
    assert_eq!(first(InterruptAction::Confirm), Some(2));
    assert_eq!(first(InterruptAction::StopAnswer), Some(3));
    assert_eq!(first(InterruptAction::Exit), Some(1));
    assert_eq!(first(InterruptAction::Ignore), None);
}
