//! No test is ignored: a test that takes too long is a target of its own, which the Makefile runs.

use super::programs;

#[test]
fn ignored_test_is_refused() {
    let attribute = concat!("#[", "ignore");
    let files = programs("src").into_iter().chain(programs("tests"));
    let ignored: Vec<_> =
        files.filter(|(_, text)| text.contains(attribute)).map(|(path, _)| path).collect();
    assert!(ignored.is_empty(), "ignored tests in {ignored:?}");
}
