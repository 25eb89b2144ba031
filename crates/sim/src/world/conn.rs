//! What happens on the connection between a client and its gateway?
//!
//! One connection per attempt. It may be lost on the way, reset by a crash, or left by its client;
//! then whatever belongs to the connection is dropped, and nothing else.

use super::{Doomed, Event, Job, TaskNo, World};
use crate::fault::Fault;
use crate::history::{Class, What};
use crate::options::Kind;

/// One attempt of a client.
pub struct Conn {
    pub key: u8,
    pub print: u8,
    pub gateway: u8,
    pub client: TaskNo,
    /// The task that dies with the connection.
    server: Option<TaskNo>,
    under_way: Option<Reply>,
    pub arrived: Option<Reply>,
    pub broken: bool,
}

/// What a gateway answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reply {
    pub class: Class,
    pub status: u16,
    pub code: Option<&'static str>,
    pub body: u16,
    pub retry_after: u16,
}

impl Conn {
    pub fn new(key: u8, print: u8, gateway: u8, client: TaskNo) -> Self {
        Self {
            key,
            print,
            gateway,
            client,
            server: None,
            under_way: None,
            arrived: None,
            broken: false,
        }
    }
}

impl World {
    pub fn conn_arrives(&mut self, conn: u16) {
        let Some(open) = self.conns.get(usize::from(conn)) else { return };
        let gateway = open.gateway;
        match self.gateways.get(usize::from(gateway)) {
            Some(process) if process.up => {
                if !open.broken {
                    self.jobs.push(Job::Serve { gateway, conn });
                }
            }
            Some(_) | None => self.reset_conn(conn),
        }
    }

    /// The gateway's end is gone: the client's connection is reset.
    pub fn reset_conn(&mut self, conn: u16) {
        if let Some(open) = self.conns.get_mut(usize::from(conn))
            && !open.broken
        {
            open.broken = true;
            self.ready.push(open.client);
        }
    }

    /// The client goes away: whatever still belongs to its connection is dropped.
    pub fn conn_breaks(&mut self, conn: u16) {
        let Some(open) = self.conns.get_mut(usize::from(conn)) else { return };
        if open.broken || open.arrived.is_some() {
            return;
        }
        open.broken = true;
        self.ready.push(open.client);
        let cancels =
            !self.options.begins_on || self.options.fault == Some(Fault::DisconnectCancels);
        if let Some(task) = open.server.take().filter(|_| cancels) {
            self.doomed.push(Doomed::Task(task));
        }
        self.record(What::Disconnected { conn });
    }

    pub fn serves(&mut self, conn: u16, task: TaskNo) {
        if let Some(open) = self.conns.get_mut(usize::from(conn)) {
            open.server = Some(task);
        }
    }

    pub fn hand_over(&mut self, conn: u16, task: Option<TaskNo>) {
        if let Some(open) = self.conns.get_mut(usize::from(conn)) {
            open.server = task;
        }
    }

    pub fn answer(&mut self, conn: u16, reply: Reply) {
        let Reply { class, status, body, retry_after, .. } = reply;
        self.record(What::Answered { conn, class, status, body, retry_after, head: 0 });
        let lost = self.strike(Kind::AnswerLost, 8);
        let ms = self.chance.between(1, 10);
        if let Some(open) = self.conns.get_mut(usize::from(conn)) {
            open.server = None;
            open.under_way = Some(reply);
            if !lost {
                self.after(ms, Event::ConnAnswers(conn));
            }
        }
    }

    pub fn conn_answers(&mut self, conn: u16) {
        if let Some(open) = self.conns.get_mut(usize::from(conn))
            && !open.broken
        {
            open.arrived = open.under_way.take();
            self.ready.push(open.client);
        }
    }
}
