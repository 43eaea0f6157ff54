//! Calls in pieces, and the barriers between them.

use super::*;

/// Returns the names of the messages that a rank sends before it waits for another rank.
fn sent_before_a_wait(operation: Operation) -> Vec<u32> {
    let layout = layout(4, 4);
    let call = Call::new(operation, Rank(0), 1 << 20, 4);
    let schedule = QuickSchedule::for_call(&call, &layout, Rank(0), CallLimits::LONG).unwrap();
    let mut root = QuickCalls::new(key(), GROUP, Rank(0), layout, CallLimits::LONG).unwrap();
    let begin = BeginCall { number: 0, digest: 1, schedule: Arc::new(schedule), combining: None };
    let (input, mut output) = (vec![7; 4 << 20], vec![0; 1 << 20]);
    root.handle(Time::ZERO, Input::Begin(begin, CallData { input: &input, output: &mut output }));
    let messages = std::iter::from_fn(|| match root.poll(Time::ZERO) {
        Poll::Output(Output::Send(message)) => Some(message.name.1),
        _ => None,
    });
    messages.collect()
}

#[test]
fn a_piece_is_sent_while_ranks_execute_a_barrier() {
    let sent = sent_before_a_wait(Operation::Bcast);
    // Two pieces fit into the window, and a third one is sent together with a barrier.
    assert_eq!(sent.len(), 6, "{sent:x?}");
    assert!(sent.iter().all(|transfer| !ActiveCall::is_barrier(*transfer)));
    // Four pieces of a scatter, each with three messages, fit into the window.
    assert_eq!(sent_before_a_wait(Operation::Scatter).len(), 12);
}
