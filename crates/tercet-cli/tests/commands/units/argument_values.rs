use tercet_cli::internals::{memory_size, seed, tokens};

#[test]
fn minus_one_is_no_limit_and_any_seed() {
    assert_eq!((tokens("7"), tokens("-1")), (Ok(7), Ok(usize::MAX)));
    assert!(tokens("-3").is_err() && tokens("").is_err() && tokens("1e3").is_err());
    assert_eq!(seed("7"), Ok(7));
    assert_ne!(seed("-1"), seed("-1"));
    assert!(seed("-2").is_err() && seed("18446744073709551616").is_err());
}

#[test]
fn memory_sizes_have_units_of_1024() {
    for text in ["8GiB", "8g", "8 GB", "8192M", "8589934592"] {
        assert_eq!(memory_size(text), Some(8 << 30), "{text}");
    }
    for text in ["", "GiB", "8 apples", "-1", "1.2.3G"] {
        assert_eq!(memory_size(text), None, "{text}");
    }
}
