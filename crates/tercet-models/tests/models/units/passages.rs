use tercet_models::internals::passages;
use tercet_models::search::IndexUnit;

#[test]
fn passages_end_at_blank_lines() {
    let text = "\na\r\nb\n \t\n\nc\nd";
    let of = |unit| passages(text, unit);
    let paragraphs: Vec<([usize; 2], String)> = of(IndexUnit::Paragraphs)
        .iter()
        .map(|own| (own.lines, own.text(text)))
        .collect();
    assert_eq!(
        paragraphs,
        [([2, 3], "a\nb".to_string()), ([6, 7], "c\nd".to_string())]
    );
    let lines: Vec<[usize; 2]> = of(IndexUnit::Lines).iter().map(|own| own.lines).collect();
    assert_eq!(lines, [[2, 2], [3, 3], [6, 6], [7, 7]]);
    assert!(passages("\n \n", IndexUnit::Paragraphs).is_empty());
}

#[test]
fn parts_have_the_lines_of_their_bytes() {
    let text = "\nab\r\ncd\nef\n";
    let own = &passages(text, IndexUnit::Paragraphs)[0];
    assert_eq!((own.lines, own.bytes.clone()), ([2, 4], 1..10));
    for (part, lines, of) in [
        (0..2, [2, 2], "ab"),
        (1..6, [2, 3], "b\ncd"),
        (4..9, [3, 4], "cd\nef"),
        (8..9, [4, 4], "f"),
    ] {
        let part = own.part(text, part);
        assert_eq!((part.lines, &*part.text(text)), (lines, of));
    }
}
