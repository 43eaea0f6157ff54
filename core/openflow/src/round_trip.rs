//! Properties of every message: it can be read back from its bytes, and bytes that were truncated,
//! extended or changed are either refused or written back unchanged.

use proptest::collection::vec;
use proptest::prelude::*;

use crate::sample::SampleSource;
use crate::*;

fn messages() -> impl Strategy<Value = Message> {
    vec(any::<u8>(), 0..2048).prop_map(|bytes| SampleSource(&bytes).draw())
}

/// Returns the first `length` bytes of a message, with a header that states this length.
fn cut(bytes: &[u8], length: usize) -> Vec<u8> {
    let mut bytes = bytes[..length].to_vec();
    bytes[2..4].copy_from_slice(&u16::try_from(length).unwrap().to_be_bytes());
    bytes
}

/// Asserts that `bytes` are refused, or read as a message that is written back as the same bytes.
fn refused_or_same(bytes: &[u8]) -> Result<(), TestCaseError> {
    if let Ok(message) = Message::decode(bytes) {
        let again = message.encode();
        prop_assert_eq!(again.as_deref(), Ok(bytes), "{:?}", message);
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn a_message_decodes_from_its_encoding(message in messages()) {
        let bytes = message.encode().unwrap();
        prop_assert_eq!(Message::decode(&bytes), Ok(message));
    }

    #[test]
    fn every_prefix_of_a_message_is_refused(message in messages()) {
        let bytes = message.encode().unwrap();
        for length in 0..bytes.len() {
            let error = Message::decode(&bytes[..length]);
            prop_assert!(matches!(error, Err(Error::Truncated { .. })), "{} bytes: {:?}", length, error);
        }
    }

    #[test]
    fn a_message_with_a_byte_too_many_is_refused(message in messages()) {
        let mut bytes = message.encode().unwrap();
        let offset = bytes.len();
        bytes.push(0);
        prop_assert_eq!(Message::decode(&bytes), Err(Error::LeftOver { what: "message", offset, left: 1 }));
    }

    #[test]
    fn a_message_cut_inside_is_refused_or_whole(message in messages()) {
        let bytes = message.encode().unwrap();
        for length in HEADER_LEN..bytes.len() {
            refused_or_same(&cut(&bytes, length))?;
        }
    }

    #[test]
    fn a_changed_byte_is_refused_or_kept(message in messages(), at: prop::sample::Index, byte: u8) {
        let mut bytes = message.encode().unwrap();
        let at = at.index(bytes.len());
        bytes[at] = byte;
        refused_or_same(&bytes)?;
    }

    #[test]
    fn padding_that_is_ignored_changes_no_value(message in messages(), at: prop::sample::Index) {
        let mut bytes = message.encode().unwrap();
        let at = at.index(bytes.len());
        bytes[at] ^= 0x80;
        // Byte 1 is the type: in a message of another type, the rest has another meaning.
        if at != 1 && matches!(Message::decode(&bytes), Err(Error::Padding { .. })) {
            prop_assert_eq!(Message::decode_with(&bytes, Padding::Ignore), Ok(message));
        }
    }

    #[test]
    fn a_message_has_words(message in messages()) {
        let words = message.to_string();
        prop_assert!(words.starts_with(&message.body.kind().to_string()));
        prop_assert!(!words.contains('\n'));
    }

    #[test]
    fn a_stream_in_any_pieces_gives_the_same_messages(
        messages in vec(messages(), 0..5), pieces in vec(1usize..200, 1..20),
    ) {
        let stream: Vec<u8> = messages.iter().flat_map(|message| message.encode().unwrap()).collect();
        let mut framer = Framer::default();
        let mut read = Vec::new();
        let mut rest = stream.as_slice();
        for piece in pieces.iter().cycle() {
            if rest.is_empty() {
                break;
            }
            let (now, later) = rest.split_at(rest.len().min(*piece));
            framer.push(now);
            read.extend(framer.by_ref());
            rest = later;
        }
        prop_assert_eq!(read, messages.into_iter().map(Ok).collect::<Vec<_>>());
        prop_assert_eq!(framer.pending(), 0);
    }
}

/// Returns the lengths to which `message` can be truncated and remain a message.
fn whole_after_cut(message: &Message) -> Vec<usize> {
    let bytes = message.encode().unwrap();
    (HEADER_LEN..bytes.len()).filter(|&length| Message::decode(&cut(&bytes, length)).is_ok()).collect()
}

#[test]
fn a_truncated_message_is_valid_only_between_list_items() {
    let matching = Match::new().in_port(PortNo(1)).eth_type(EtherType::IPV4);
    let actions = vec![Action::SetField(Oxm::EthDst(Masked::exact(MacAddr::broadcast()))), Action::PopVlan];
    let instructions = vec![Instruction::ApplyActions(actions.clone()), Instruction::GotoTable(TableId(2))];
    let flow = FlowMod { matching: matching.clone(), instructions, ..FlowMod::default() };
    // The header, 40 bytes of numbers, and the match of 18 bytes with 6 of padding; then one
    // instruction.
    assert_eq!(whole_after_cut(&Message::new(1, Body::FlowMod(flow))), [72, 72 + 8 + 16 + 8]);

    let (command, kind, group) = (GroupCommand::ADD, GroupType::ALL, GroupId(1));
    let buckets = vec![Bucket::new(actions.clone()), Bucket::new(actions)];
    let group = GroupMod { command, kind, group, buckets };
    assert_eq!(whole_after_cut(&Message::new(1, Body::GroupMod(group))), [16, 16 + 16 + 16 + 8]);

    let features: SwitchFeatures = SampleSource(&[1; 64]).draw();
    assert_eq!(whole_after_cut(&Message::new(1, Body::FeaturesReply(features))), []);
    let port: PortStatus = SampleSource(&[1; 128]).draw();
    assert_eq!(whole_after_cut(&Message::new(1, Body::PortStatus(port))), []);
    let removed = FlowRemoved { matching, ..SampleSource(&[0; 128]).draw() };
    assert_eq!(whole_after_cut(&Message::new(1, Body::FlowRemoved(removed))), []);
}

#[test]
fn a_message_too_long_for_its_length_field_is_refused() {
    let longest = Message::new(1, Body::EchoRequest(vec![0; MAX_LEN - HEADER_LEN]));
    assert_eq!(longest.encode().unwrap().len(), MAX_LEN);
    let longer = Message::new(1, Body::EchoRequest(vec![0; MAX_LEN - HEADER_LEN + 1]));
    let error = Error::TooLong { what: "message", length: MAX_LEN + 1, limit: MAX_LEN };
    assert_eq!(longer.encode(), Err(error));
}

#[test]
fn data_that_would_not_end_where_its_place_ends_is_refused() {
    let action = Action::Experimenter { experimenter: 1, data: vec![0; 5] };
    let out = PacketOut { actions: vec![action], ..PacketOut::new(PortNo(1), Vec::new()) };
    let error = Error::Unaligned { what: "action", length: 13 };
    assert_eq!(Message::new(1, Body::PacketOut(out)).encode(), Err(error));

    let oxm = UnknownOxm { class: 0xffff, field: 0x80, has_mask: false, payload: vec![0; 4] };
    let flow = FlowMod { matching: Match::new().with(Oxm::Unknown(oxm)), ..FlowMod::default() };
    let error = Error::TooLarge { what: "OXM field number", value: 0x80, limit: 0x7f };
    assert_eq!(Message::new(1, Body::FlowMod(flow)).encode(), Err(error));
}

#[test]
fn a_hello_of_any_version_is_read_and_no_other_request() {
    let old = Message::decode(&[1, 0, 0, 10, 0, 0, 0, 1, 0xab, 0xcd]).unwrap();
    let Body::Hello(hello) = &old.body else { panic!("{old:?}") };
    assert_eq!((hello.version, hello.rest.as_slice()), (1, [0xab, 0xcd].as_slice()));
    assert!(hello.speaks(1) && !hello.speaks(VERSION));
    assert_eq!(old.encode().unwrap(), [1, 0, 0, 10, 0, 0, 0, 1, 0xab, 0xcd]);

    let newer = Message::decode(&[6, 0, 0, 16, 0, 0, 0, 1, 0, 1, 0, 8, 0, 0, 0, 0x52]).unwrap();
    let Body::Hello(hello) = newer.body else { panic!("{newer:?}") };
    assert!(hello.speaks(6) && hello.speaks(4) && !hello.speaks(5) && !hello.speaks(200));

    let request = Message::decode(&[1, 5, 0, 8, 0, 0, 0, 1]);
    assert_eq!(request, Err(Error::Version { version: 1, kind: 5 }));
}

#[test]
fn a_hello_of_ours_with_a_broken_element_is_refused() {
    let error = Message::decode(&[4, 0, 0, 10, 0, 0, 0, 1, 0xab, 0xcd]);
    assert!(matches!(error, Err(Error::Truncated { what: "hello element", .. })), "{error:?}");
}

#[test]
fn nonzero_padding_is_refused_unless_it_is_ignored() {
    let message =
        Message::new(1, Body::RoleRequest(RoleConfig { role: ControllerRole::MASTER, generation: 7 }));
    let mut bytes = message.encode().unwrap();
    bytes[13] = 1;
    assert_eq!(Message::decode(&bytes), Err(Error::Padding { what: "role", offset: 13 }));
    assert_eq!(Message::decode_with(&bytes, Padding::Ignore), Ok(message));
}

#[test]
fn a_stream_goes_on_behind_a_message_that_cannot_be_read() {
    let mut framer = Framer::default();
    framer.push(&[4, 5, 0, 9, 0, 0, 0, 1, 0xff]);
    framer.push(&[4, 20, 0, 8, 0, 0, 0, 2]);
    assert!(matches!(framer.next(), Some(Err(Error::LeftOver { .. }))));
    assert_eq!(framer.next(), Some(Ok(Message::new(2, Body::BarrierRequest))));
    assert_eq!(framer.next(), None);
}

#[test]
fn a_stream_ends_at_an_impossible_length() {
    let mut framer = Framer::default();
    framer.push(&[4, 20, 0, 7]);
    assert!(matches!(framer.next(), Some(Err(Error::Length { length: 7, .. }))));
    framer.push(&[4, 20, 0, 8, 0, 0, 0, 2]);
    assert_eq!(framer.next(), None);
    assert_eq!(framer.pending(), 0);
}

#[test]
fn a_list_of_actions_that_claims_no_length_is_refused() {
    // A packet-out with an action of length 0, on which a careless reader would loop forever.
    let mut bytes = Message::new(1, Body::PacketOut(PacketOut::new(PortNo(1), Vec::new()))).encode().unwrap();
    bytes[26..28].fill(0);
    let error = Message::decode(&bytes);
    assert!(matches!(error, Err(Error::Length { what: "action", offset: 24, length: 0, .. })), "{error:?}");
}

#[test]
fn an_item_takes_little_more_memory_than_bytes() {
    // On the wire, the smallest OXM field has 4 bytes, and the smallest action or instruction has
    // 8. A message of 64 KiB therefore needs at most two megabytes of memory.
    assert!(size_of::<Oxm>() <= 12 * 4);
    assert!(size_of::<Action>() <= 8 * 8);
    assert!(size_of::<Instruction>() <= 8 * 8);
}
