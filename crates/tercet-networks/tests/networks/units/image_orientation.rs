use tercet_networks::internals::{Orientation, SHORT, TAG, tag};

/// Exif data with another tag, followed by this orientation.
fn exif(is_little: bool, value: u16) -> Vec<u8> {
    let short = |x: u16| match is_little {
        true => x.to_le_bytes(),
        false => x.to_be_bytes(),
    };
    let long = |x: u32| match is_little {
        true => x.to_le_bytes(),
        false => x.to_be_bytes(),
    };
    let mut bytes = if is_little { b"II*\0" } else { b"MM\0*" }.to_vec();
    bytes.extend(long(10));
    bytes.extend([0, 0]);
    bytes.extend(short(2));
    for (tag, value) in [(0x0100, 7), (TAG, value)] {
        bytes.extend(short(tag));
        bytes.extend(short(SHORT));
        bytes.extend(long(1));
        bytes.extend(short(value));
        bytes.extend([0, 0]);
    }
    bytes
}

#[test]
fn orientations_are_found_and_damaged_data_say_none() {
    for is_little in [true, false] {
        for value in 0..10 {
            assert_eq!(tag(&exif(is_little, value)), Some(value));
        }
        let whole = exif(is_little, 6);
        assert_eq!(Orientation::from_exif(&whole), Orientation::QuarterTurn);
        for len in 0..whole.len() - 2 {
            assert_eq!(Orientation::from_exif(&whole[..len]), Orientation::Upright);
        }
        let mut far = whole;
        far[4..8].fill(0xff);
        assert_eq!(Orientation::from_exif(&far), Orientation::Upright);
    }
    let upright = Orientation::from_exif(&exif(true, 9));
    assert_eq!(upright, Orientation::Upright);
}

#[test]
fn pictures_are_turned_upright() {
    // a b c
    // d e f
    let file: Vec<u8> = b"abcdef".iter().flat_map(|&x| [x; 3]).collect();
    let upright = |value| {
        let orientation = Orientation::from_exif(&exif(false, value));
        let ([width, _], rgb) = orientation.upright([3, 2], file.clone());
        let letters: Vec<u8> = rgb.chunks(3).map(|pixel| pixel[0]).collect();
        let rows: Vec<_> = letters.chunks(width).map(String::from_utf8_lossy).collect();
        rows.join(" ")
    };
    let all: Vec<String> = (1..=8).map(upright).collect();
    let want = [
        "abc def", "cba fed", "fed cba", "def abc", "ad be cf", "da eb fc", "fc eb da", "cf be ad",
    ];
    assert_eq!(all, want);
}
