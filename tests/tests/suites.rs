//! Runs every suite on every executor of the build; `TERCET_EXECUTORS` selects executors.

fn main() {
    tercet_tests::harness::main();
}
