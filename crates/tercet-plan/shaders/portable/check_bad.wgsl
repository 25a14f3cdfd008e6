// Predicate of a data check: true for an invalid element. Kind 0 requires indices in [-len, len);
// kind 1 requires counts in [0, len].

fn is_bad(kind: u32, value: u32, len: u32) -> bool {
    let negative = value >= 0x80000000u;
    if kind == 1u {
        return negative || value > len;
    }
    // -value in two's complement. -2^31 stays 2^31, above every length.
    return select(value >= len, (~value + 1u) > len, negative);
}
