//! Arbitrary messages for the property tests. They are generated from bytes, so that proptest
//! shrinks them by shrinking the bytes. When all bytes are used, zeros follow, which generate the
//! simplest message.

use std::net::{Ipv4Addr, Ipv6Addr};

use crate::*;

/// Bytes from which values are generated.
pub(crate) struct SampleSource<'a>(pub(crate) &'a [u8]);

/// A value that can be generated.
pub(crate) trait Sample: Sized {
    fn sample(source: &mut SampleSource<'_>) -> Self;
}

impl SampleSource<'_> {
    fn byte(&mut self) -> u8 {
        let Some((&first, rest)) = self.0.split_first() else { return 0 };
        self.0 = rest;
        first
    }

    pub(crate) fn below(&mut self, end: usize) -> usize {
        usize::from(self.byte()) % end
    }

    pub(crate) fn draw<T: Sample>(&mut self) -> T {
        T::sample(self)
    }

    /// Returns a value that is `wanted`: the next one if it is, otherwise the first wanted one
    /// among the values with all bytes alike.
    pub(crate) fn draw_until<T: Sample>(&mut self, wanted: impl Fn(&T) -> bool) -> T {
        let drawn = self.draw();
        if wanted(&drawn) {
            return drawn;
        }
        (0..=u8::MAX)
            .map(|byte| T::sample(&mut SampleSource(&[byte; 8])))
            .find(|value| wanted(value))
            .expect("one of the values with all bytes alike is wanted")
    }

    fn bytes(&mut self, count: usize) -> Vec<u8> {
        (0..count).map(|_| self.byte()).collect()
    }

    /// Returns raw data whose length exceeds a multiple of eight by `rest`.
    fn aligned(&mut self, rest: usize) -> Vec<u8> {
        let count = 8 * self.below(4) + rest;
        self.bytes(count)
    }
}

macro_rules! integers {
    ($($int:ty),*) => { $(
        impl Sample for $int {
            fn sample(source: &mut SampleSource<'_>) -> Self {
                Self::from_be_bytes(source.draw())
            }
        }
    )* };
}

integers!(u16, u32, u64, u128);

impl Sample for u8 {
    fn sample(source: &mut SampleSource<'_>) -> Self {
        source.byte()
    }
}

impl<const N: usize> Sample for [u8; N] {
    fn sample(source: &mut SampleSource<'_>) -> Self {
        std::array::from_fn(|_| source.byte())
    }
}

impl<T: Sample> Sample for Vec<T> {
    fn sample(source: &mut SampleSource<'_>) -> Self {
        (0..source.below(5)).map(|_| source.draw()).collect()
    }
}

impl<T: Sample> Sample for Box<T> {
    fn sample(source: &mut SampleSource<'_>) -> Self {
        Self::new(source.draw())
    }
}

impl<T: Sample> Sample for Option<T> {
    fn sample(source: &mut SampleSource<'_>) -> Self {
        (source.below(2) == 1).then(|| source.draw())
    }
}

macro_rules! sample {
    ($($type:ty: $source:ident => $value:expr;)*) => { $(
        impl Sample for $type {
            fn sample($source: &mut SampleSource<'_>) -> Self {
                $value
            }
        }
    )* };
}

sample! {
    Ipv4Addr: source => Self::from_bits(source.draw());
    Ipv6Addr: source => Self::from_bits(source.draw());
    MacAddr: source => Self::from(source.draw::<[u8; 6]>());
    Counter: source => Self(source.draw());
    U24: source => Self::new(source.draw::<u32>() >> 8).expect("24 bits");
    Message: source => Self { xid: source.draw(), body: source.draw() };
    Match: source => Self { fields: source.draw() };
    PacketOut: source => Self {
        buffer: source.draw(),
        in_port: source.draw(),
        actions: source.draw(),
        data: source.draw(),
    };
    ErrorMessage: source => Self {
        version: source.draw(),
        kind: source.draw(),
        code: source.draw(),
        data: source.draw(),
    };
    Band: source => Self { rate: source.draw(), burst: source.draw(), effect: source.draw() };
    Queue: source => Self { queue: source.draw(), port: source.draw(), properties: source.draw() };
    MeterStats: source => Self { meter: source.draw(), counters: source.draw() };
    TableProperty: source => Self { kind: source.draw(), data: source.draw() };
    UnknownOxm: source => Self {
        // The class must not be one with named fields.
        class: source.draw::<u16>() & 0x7fff,
        field: source.draw::<u8>() & 0x7f,
        has_mask: source.below(2) == 1,
        payload: source.draw(),
    };
}

impl<const N: usize> Sample for FixedText<N> {
    fn sample(source: &mut SampleSource<'_>) -> Self {
        Self(source.draw())
    }
}

impl<T: Sample> Sample for Masked<T> {
    fn sample(source: &mut SampleSource<'_>) -> Self {
        Self { value: source.draw(), mask: source.draw() }
    }
}

impl<T: Sample> Sample for Multipart<T> {
    fn sample(source: &mut SampleSource<'_>) -> Self {
        Self { flags: source.draw(), body: source.draw() }
    }
}

impl Sample for Hello {
    fn sample(source: &mut SampleSource<'_>) -> Self {
        let hello = Self { elements: source.draw(), ..Self::default() };
        if source.below(2) == 0 {
            return hello;
        }
        // These bytes are too few for an element.
        let rest = (0..source.below(4)).map(|_| source.byte()).collect();
        Self { version: source.draw_until(|&version| version != VERSION), rest, ..hello }
    }
}

impl Sample for HelloElement {
    fn sample(source: &mut SampleSource<'_>) -> Self {
        if source.below(2) == 0 {
            return Self::VersionBitmap(source.draw());
        }
        let kind = source.draw_until(|kind: &HelloElementType| kind.name().is_none());
        Self::Unknown { kind, data: source.draw() }
    }
}

impl Sample for Action {
    fn sample(source: &mut SampleSource<'_>) -> Self {
        match source.below(18) {
            0 => Self::Output { port: source.draw(), max_len: source.draw() },
            1 => Self::CopyTtlOut,
            2 => Self::CopyTtlIn,
            3 => Self::SetMplsTtl(source.draw()),
            4 => Self::DecMplsTtl,
            5 => Self::PushVlan(source.draw()),
            6 => Self::PopVlan,
            7 => Self::PushMpls(source.draw()),
            8 => Self::PopMpls(source.draw()),
            9 => Self::SetQueue(source.draw()),
            10 => Self::Group(source.draw()),
            11 => Self::SetNwTtl(source.draw()),
            12 => Self::DecNwTtl,
            13 => Self::SetField(source.draw()),
            14 => Self::PushPbb(source.draw()),
            15 => Self::PopPbb,
            16 => Self::Experimenter { experimenter: source.draw(), data: source.aligned(0) },
            _ => Self::Unknown {
                kind: source.draw_until(|kind: &ActionType| kind.name().is_none()),
                data: source.aligned(4),
            },
        }
    }
}

impl Sample for Instruction {
    fn sample(source: &mut SampleSource<'_>) -> Self {
        match source.below(8) {
            0 => Self::GotoTable(source.draw()),
            1 => Self::WriteMetadata { metadata: source.draw(), mask: source.draw() },
            2 => Self::WriteActions(source.draw()),
            3 => Self::ApplyActions(source.draw()),
            4 => Self::ClearActions,
            5 => Self::Meter(source.draw()),
            6 => Self::Experimenter { experimenter: source.draw(), data: source.aligned(0) },
            _ => Self::Unknown {
                kind: source.draw_until(|kind: &InstructionType| kind.name().is_none()),
                data: source.aligned(4),
            },
        }
    }
}

impl Sample for BandEffect {
    fn sample(source: &mut SampleSource<'_>) -> Self {
        match source.below(4) {
            0 => Self::Drop,
            1 => Self::DscpRemark(source.draw()),
            2 => Self::Experimenter { experimenter: source.draw(), data: source.draw() },
            _ => Self::Unknown {
                kind: source.draw_until(|kind: &BandType| kind.name().is_none()),
                data: source.draw(),
            },
        }
    }
}

impl Sample for QueueProperty {
    fn sample(source: &mut SampleSource<'_>) -> Self {
        match source.below(4) {
            0 => Self::MinRate(source.draw()),
            1 => Self::MaxRate(source.draw()),
            2 => Self::Experimenter { experimenter: source.draw(), data: source.draw() },
            _ => Self::Unknown {
                kind: source.draw_until(|kind: &QueuePropertyType| kind.name().is_none()),
                data: source.draw(),
            },
        }
    }
}
