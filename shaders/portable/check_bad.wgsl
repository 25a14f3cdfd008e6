// What a check refuses. KIND 0: indices in [-len, len); KIND 1: counts in [0, len].

override KIND: u32 = 0u;

fn is_bad(value: u32, len: u32) -> bool {
    let negative = value >= 0x80000000u;
    if KIND == 1u {
        return negative || value > len;
    }
    // -value in two's complement; -2^31 stays 2^31, above every length.
    return select(value >= len, (~value + 1u) > len, negative);
}
