// FFT butterflies of small radices: X[k] = sum_j a[j] e^(-2 pi i j k / R).

fn times(a: vec2<f32>, b: vec2<f32>) -> vec2<f32> {
    return vec2<f32>(a.x * b.x - a.y * b.y, a.x * b.y + a.y * b.x);
}

// -i a
fn turned(a: vec2<f32>) -> vec2<f32> {
    return vec2<f32>(a.y, -a.x);
}

// a e^(-pi i / 4) and a e^(-3 pi i / 4)
const ROOT_HALF: f32 = 0.70710678;

fn eighth(a: vec2<f32>) -> vec2<f32> {
    return ROOT_HALF * vec2<f32>(a.x + a.y, a.y - a.x);
}

fn three_eighths(a: vec2<f32>) -> vec2<f32> {
    return ROOT_HALF * vec2<f32>(a.y - a.x, -a.x - a.y);
}

fn dft1(a: array<vec2<f32>, 1>) -> array<vec2<f32>, 1> {
    return a;
}

fn dft2(a: array<vec2<f32>, 2>) -> array<vec2<f32>, 2> {
    return array<vec2<f32>, 2>(a[0] + a[1], a[0] - a[1]);
}

fn dft3(a: array<vec2<f32>, 3>) -> array<vec2<f32>, 3> {
    let sum = a[1] + a[2];
    let middle = a[0] - 0.5 * sum;
    let side = 0.8660254 * turned(a[1] - a[2]);
    return array<vec2<f32>, 3>(a[0] + sum, middle + side, middle - side);
}

fn dft4(a: array<vec2<f32>, 4>) -> array<vec2<f32>, 4> {
    let even = a[0] + a[2];
    let even_rest = a[0] - a[2];
    let odd = a[1] + a[3];
    let odd_rest = turned(a[1] - a[3]);
    return array<vec2<f32>, 4>(even + odd, even_rest + odd_rest, even - odd, even_rest - odd_rest);
}

fn dft5(a: array<vec2<f32>, 5>) -> array<vec2<f32>, 5> {
    let s1 = a[1] + a[4];
    let s2 = a[2] + a[3];
    let d1 = a[1] - a[4];
    let d2 = a[2] - a[3];
    let m1 = a[0] + (0.30901699 * s1 - 0.80901699 * s2);
    let m2 = a[0] + (0.30901699 * s2 - 0.80901699 * s1);
    let n1 = turned(0.95105652 * d1 + 0.58778525 * d2);
    let n2 = turned(0.58778525 * d1 - 0.95105652 * d2);
    return array<vec2<f32>, 5>(a[0] + (s1 + s2), m1 + n1, m2 + n2, m2 - n2, m1 - n1);
}

fn dft7(a: array<vec2<f32>, 7>) -> array<vec2<f32>, 7> {
    let s1 = a[1] + a[6];
    let s2 = a[2] + a[5];
    let s3 = a[3] + a[4];
    let d1 = a[1] - a[6];
    let d2 = a[2] - a[5];
    let d3 = a[3] - a[4];
    let m1 = a[0] + (0.6234898 * s1 - 0.22252093 * s2 - 0.90096887 * s3);
    let m2 = a[0] + (0.6234898 * s3 - 0.22252093 * s1 - 0.90096887 * s2);
    let m3 = a[0] + (0.6234898 * s2 - 0.22252093 * s3 - 0.90096887 * s1);
    let n1 = turned(0.78183148 * d1 + 0.97492791 * d2 + 0.43388374 * d3);
    let n2 = turned(0.97492791 * d1 - 0.43388374 * d2 - 0.78183148 * d3);
    let n3 = turned(0.43388374 * d1 - 0.78183148 * d2 + 0.97492791 * d3);
    return array<vec2<f32>, 7>(a[0] + (s1 + s2 + s3), m1 + n1, m2 + n2, m3 + n3, m3 - n3, m2 - n2, m1 - n1);
}

fn dft8(a: array<vec2<f32>, 8>) -> array<vec2<f32>, 8> {
    let even = dft4(array<vec2<f32>, 4>(a[0], a[2], a[4], a[6]));
    let odd = dft4(array<vec2<f32>, 4>(a[1], a[3], a[5], a[7]));
    let o1 = eighth(odd[1]);
    let o2 = turned(odd[2]);
    let o3 = three_eighths(odd[3]);
    return array<vec2<f32>, 8>(
        even[0] + odd[0],
        even[1] + o1,
        even[2] + o2,
        even[3] + o3,
        even[0] - odd[0],
        even[1] - o1,
        even[2] - o2,
        even[3] - o3,
    );
}

fn dft16(a: array<vec2<f32>, 16>) -> array<vec2<f32>, 16> {
    let w1 = vec2<f32>(0.92387953, -0.38268343);
    let w3 = vec2<f32>(0.38268343, -0.92387953);
    let c0 = dft4(array<vec2<f32>, 4>(a[0], a[4], a[8], a[12]));
    let c1 = dft4(array<vec2<f32>, 4>(a[1], a[5], a[9], a[13]));
    let c2 = dft4(array<vec2<f32>, 4>(a[2], a[6], a[10], a[14]));
    let c3 = dft4(array<vec2<f32>, 4>(a[3], a[7], a[11], a[15]));
    let r0 = dft4(array<vec2<f32>, 4>(c0[0], c1[0], c2[0], c3[0]));
    let r1 = dft4(array<vec2<f32>, 4>(c0[1], times(c1[1], w1), eighth(c2[1]), times(c3[1], w3)));
    let r2 = dft4(array<vec2<f32>, 4>(c0[2], eighth(c1[2]), turned(c2[2]), three_eighths(c3[2])));
    let r3 = dft4(array<vec2<f32>, 4>(c0[3], times(c1[3], w3), three_eighths(c2[3]), times(c3[3], -w1)));
    return array<vec2<f32>, 16>(
        r0[0], r1[0], r2[0], r3[0],
        r0[1], r1[1], r2[1], r3[1],
        r0[2], r1[2], r2[2], r3[2],
        r0[3], r1[3], r2[3], r3[3],
    );
}
