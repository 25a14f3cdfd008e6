//! Every suite on every executor of the build; `TERCET_EXECUTORS` may choose some.

fn main() {
    tercet_tests::harness::main();
}
