//! A buffer of known size, filled from its front.

pub struct Filling<'a> {
    rest: &'a mut [u8],
}

impl<'a> Filling<'a> {
    pub fn new(buffer: &'a mut [u8]) -> Self {
        Self { rest: buffer }
    }

    #[inline]
    pub fn put(&mut self, bytes: &[u8]) {
        let (here, rest) = std::mem::take(&mut self.rest).split_at_mut(bytes.len());
        here.copy_from_slice(bytes);
        self.rest = rest;
    }
}
