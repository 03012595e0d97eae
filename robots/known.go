package robots

// Known returns a table of the robots that sites meet most, without lists: docs/robots.md has
// where their operators publish them. It is a new one on each call.
//
// Tokens that only robots.txt has (Google-Extended, Applebot-Extended) are not in it, as no
// request carries them. iMessage has a name of its own: people's phones send
// "facebookexternalhit/1.1 Facebot Twitterbot/1.0", from any network.
func Known() []Robot {
	return []Robot{
		robot("search", "Googlebot", "Googlebot"),
		robot("search", "GoogleOther", "GoogleOther", "Storebot-Google", "Google-InspectionTool", "Google-CloudVertexBot"),
		robot("search", "AdsBot-Google", "AdsBot-Google", "Mediapartners-Google", "APIs-Google"),
		robot("search", "Bingbot", "bingbot", "adidxbot", "BingPreview", "MicrosoftPreview"),
		robot("search", "DuckDuckBot", "DuckDuckBot", "DuckDuckBot-Https"),
		robot("search", "Applebot", "Applebot"),
		robot("search", "YandexBot", "YandexBot", "YandexImages", "YandexImageResizer", "YandexVideo", "YandexMedia",
			"YandexMobileBot", "YandexRenderResourcesBot", "YandexAccessibilityBot", "YandexMetrika", "YandexFavicons",
			"yandex.com/bots"),
		robot("search", "Baiduspider", "Baiduspider", "Baiduspider-render"),
		robot("search", "PetalBot", "PetalBot", "AspiegelBot"),
		robot("search", "SeznamBot", "SeznamBot"),
		robot("search", "Yeti", "Yeti"),
		robot("search", "Qwantbot", "Qwantbot", "Qwantify"),
		robot("search", "MojeekBot", "MojeekBot"),
		robot("search", "Kagibot", "Kagibot"),

		robot("ai", "GPTBot", "GPTBot"),
		robot("ai", "OAI-SearchBot", "OAI-SearchBot"),
		robot("ai", "OAI-AdsBot", "OAI-AdsBot"),
		robot("ai", "ClaudeBot", "ClaudeBot"),
		robot("ai", "Claude-SearchBot", "Claude-SearchBot"),
		robot("ai", "Claude-Web", "Claude-Web", "anthropic-ai"),
		robot("ai", "meta-externalagent", "meta-externalagent"),
		robot("ai", "meta-webindexer", "meta-webindexer"),
		robot("ai", "Bytespider", "Bytespider"),
		robot("ai", "Amazonbot", "Amazonbot"),
		robot("ai", "Amzn-SearchBot", "Amzn-SearchBot"),
		robot("ai", "CCBot", "CCBot"),
		robot("ai", "PerplexityBot", "PerplexityBot"),
		robot("ai", "DuckAssistBot", "DuckAssistBot"),

		robot("fetch", "Google-Read-Aloud", "Google-Read-Aloud", "Google-NotebookLM", "Google-Site-Verification"),
		robot("fetch", "ChatGPT-User", "ChatGPT-User"),
		robot("fetch", "Claude-User", "Claude-User"),
		robot("fetch", "Perplexity-User", "Perplexity-User"),
		robot("fetch", "MistralAI-User", "MistralAI-User"),
		robot("fetch", "Amzn-User", "Amzn-User"),
		robot("fetch", "Google-Agent", "Google-Agent"),

		robot("seo", "AhrefsBot", "AhrefsBot", "AhrefsSiteAudit"),
		robot("seo", "SemrushBot", "SemrushBot", "SiteAuditBot"),
		robot("seo", "MJ12bot", "MJ12bot"),
		robot("seo", "DotBot", "DotBot"),
		robot("seo", "DataForSeoBot", "DataForSeoBot"),
		robot("seo", "BLEXBot", "BLEXBot"),
		robot("seo", "Barkrowler", "Barkrowler"),
		robot("seo", "SERankingBacklinksBot", "SERankingBacklinksBot"),

		robot("preview", "facebookexternalhit", "facebookexternalhit", "Facebot"),
		robot("preview", "iMessage", iMessage),
		robot("preview", "WhatsApp", "WhatsApp"),
		robot("preview", "Twitterbot", "Twitterbot"),
		robot("preview", "LinkedInBot", "LinkedInBot"),
		robot("preview", "Slackbot", "Slackbot", "Slackbot-LinkExpanding", "Slack-ImgProxy"),
		robot("preview", "Discordbot", "Discordbot"),
		robot("preview", "TelegramBot", "TelegramBot"),
		robot("preview", "redditbot", "redditbot"),
		robot("preview", "Pinterestbot", "Pinterestbot", "pinterest.com/bot"),

		robot("feed", "FeedFetcher-Google", "FeedFetcher-Google"),
		robot("feed", "Feedly", "FeedlyBot", "Feedly"),
		robot("feed", "Inoreader", "inoreader.com", "Inoreader"),
		robot("feed", "NewsBlur", "NewsBlur"),
		robot("feed", "Feedbin", "Feedbin"),

		robot("monitor", "UptimeRobot", "UptimeRobot"),
		robot("monitor", "Pingdom", "Pingdom.com_bot", "PingdomPageSpeed"),
		robot("monitor", "StatusCake", "StatusCake"),
		robot("monitor", "updown", "updown.io"),
		robot("monitor", "Better Uptime", "Better Uptime Bot", "Better Stack"),

		robot("archive", "archive.org_bot", "archive.org_bot"),
		robot("archive", "Archive-It", "special_archiver", "Archive-It"),
		robot("archive", "arquivo.pt", "arquivo.pt", "Arquivo-web-crawler"),
		robot("archive", "ia_archiver", "ia_archiver"),
	}
}

// iMessage is what people's phones send. It is no forgery of the robots in it, also in a table
// that does not have it.
const iMessage = "facebookexternalhit/1.1 Facebot Twitterbot"

func robot(group, name string, tokens ...string) Robot {
	return Robot{Name: name, Tokens: tokens, Group: group}
}
