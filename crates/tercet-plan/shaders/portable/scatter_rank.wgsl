// Binary search in sorted keys. The including shader declares `keys`.
// uses scatter.wgsl or scatter_starts.wgsl: keys

// First rank of `updates` whose key is at least `key`.
fn rank_of(key: u32, updates: u32) -> u32 {
    var low = 0u;
    var high = updates;
    while low < high {
        let middle = low + (high - low) / 2u;
        if keys[middle] < key {
            low = middle + 1u;
        } else {
            high = middle;
        }
    }
    return low;
}
