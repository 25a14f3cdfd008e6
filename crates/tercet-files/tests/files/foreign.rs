//! The boundary around libraries that read foreign files.

use tercet_files::contained;

#[test]
fn a_panic_becomes_an_error_with_its_message() {
    assert_eq!(contained(|| 3), Ok(3));
    let failed = contained(|| -> u8 { panic!("rate {}", 0) });
    assert!(failed.unwrap_err().ends_with("rate 0"));
}
