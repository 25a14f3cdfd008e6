// State rows in word loads: loads the words of four elements from element i, clipped to the `count`
// elements of the row.
// uses prelude.wgsl: F32, word_of
// uses states.wgsl: DTYPE

@group(0) @binding(1) var<storage, read> enter_data: array<u32>;
@group(0) @binding(2) var<storage, read> leave_data: array<u32>;

// False: a group of four elements may begin in the middle of a word.
const ALIGNED: bool = false;

// Words to load: from the word of the first element to that of the last.
fn row_words(i: u32, count: u32) -> vec4<u32> {
    let first = word_of(i, DTYPE);
    let last = word_of(i + clamp(count, 1u, 4u) - 1u, DTYPE);
    return min(vec4<u32>(first) + vec4<u32>(0u, 1u, 2u, 3u), vec4<u32>(last));
}

fn enter_words(i: u32, count: u32) -> vec4<u32> {
    let at = row_words(i, count);
    var words = vec4<u32>(enter_data[at.x], enter_data[at.y], enter_data[at.z], 0u);
    if DTYPE == F32 {
        words.w = enter_data[at.w];
    }
    return words;
}

fn leave_words(i: u32, count: u32) -> vec4<u32> {
    let at = row_words(i, count);
    var words = vec4<u32>(leave_data[at.x], leave_data[at.y], leave_data[at.z], 0u);
    if DTYPE == F32 {
        words.w = leave_data[at.w];
    }
    return words;
}
