use tercet_cli::internals::{causes, indented};

#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct TestErrorLayer(&'static str, #[source] Option<Box<TestErrorLayer>>);

#[test]
fn a_cause_is_said_once() {
    let chain = |texts: [&'static str; 3]| {
        let [outer, middle, inner] = texts;
        let inner = TestErrorLayer(inner, None);
        let middle = TestErrorLayer(middle, Some(Box::new(inner)));
        causes(&TestErrorLayer(outer, Some(Box::new(middle))))
    };
    assert_eq!(chain(["a", "b", "c"]), ["b", "c"]);
    assert_eq!(chain(["cannot do: timed out", "timed out", "c"]), ["c"]);
    assert_eq!(
        chain(["cannot read x.npy", "x.npy: no file", "no file"]),
        ["no file"]
    );
}

#[test]
fn further_lines_are_indented() {
    assert_eq!(indented("a\n  b\nerror: c"), "a\n  b\n  error: c");
}
