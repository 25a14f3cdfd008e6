//! Decompositions of Fourier transforms.

use tercet_ir::internals::greatest_prime;

#[test]
fn greatest_primes() {
    let found = [1, 2, 12, 13, 49, 98, 4096, 10007].map(greatest_prime);
    assert_eq!(found, [1, 2, 3, 13, 7, 7, 2, 10007]);
}
