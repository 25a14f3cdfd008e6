// reduce.wgsl with rows of whole vectors of PER elements. A unit is one vector load, and four loads
// are in flight.
// uses numbers.wgsl: combine, identity, number_of
// uses reduce.wgsl: IN, PER
// uses rows.wgsl: THREADS

@group(0) @binding(1) var<storage, read> x: array<vec4<u32>>;

const AHEAD: u32 = 4u;

// Results over a word, and over a vector.
fn word_result(word: u32) -> u32 {
    var all = number_of(word, 0u, IN);
    for (var lane = 1u; lane < PER / 4u; lane += 1u) {
        all = combine(all, number_of(word, lane, IN));
    }
    return all;
}

fn vector_result(words: vec4<u32>) -> u32 {
    let a = combine(word_result(words.x), word_result(words.y));
    return combine(a, combine(word_result(words.z), word_result(words.w)));
}

// Result over `count` units, every THREADS-th from unit `first`. Sums are nested in blocks of 16.
fn over_units(row: u32, first: u32, count: u32) -> u32 {
    let start = row / PER + first;
    var all = identity();
    for (var done = 0u; done < count; done += 256u) {
        var some = identity();
        let blocks = min((count - done + 15u) / 16u, 16u);
        for (var block = 0u; block < blocks; block += 1u) {
            var few = identity();
            let from_here = done + block * 16u;
            let end = min(from_here + 16u, count);
            for (var n = from_here; n < end; n += AHEAD) {
                var words: array<vec4<u32>, AHEAD>;
                for (var k = 0u; k < AHEAD; k += 1u) {
                    words[k] = x[start + min(n + k, count - 1u) * THREADS];
                }
                for (var k = 0u; k < AHEAD; k += 1u) {
                    few = select(few, combine(few, vector_result(words[k])), n + k < count);
                }
            }
            some = combine(some, few);
        }
        all = combine(all, some);
    }
    return all;
}
